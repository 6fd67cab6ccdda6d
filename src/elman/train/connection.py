"""Errors of the connection between processes, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch.distributed as dist

from elman.errors import RunError, diagnostic


def of_connection(error: RuntimeError) -> bool:
    """Whether an error is of the connection between processes."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


@contextmanager
def _told(text: str, hint: str) -> Iterator[None]:
    """Errors of the connection as one of ours."""
    try:
        yield
    except RuntimeError as error:
        if not of_connection(error):
            raise
        details = [("said", str(error).splitlines()[0])]
        raise RunError(diagnostic(text, details, hint)) from error


def joining(workers: int, timeout: float) -> AbstractContextManager[None]:
    """Say that the processes of a run have not found one another.

    Args:
        workers: how many there are.
        timeout: how long they wait for one another (s).

    Raises:
        RunError: instead of an error of the connection.
    """
    hint = f"start all {workers} within --timeout {timeout:g} s; a free MASTER_PORT"
    return _told("the processes of the run have not found one another", hint)


def noticing_loss(hint: str) -> AbstractContextManager[None]:
    """Say that another process of a run is gone, in place of the error of torch's connection.

    Args:
        hint: what to do then.

    Raises:
        RunError: instead of an error of a collective operation.
    """
    return _told("another process of the run is gone", hint)
