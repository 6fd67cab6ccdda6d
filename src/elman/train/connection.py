"""Errors of the connection between processes, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from elman.errors import RunError, diagnostic


def of_connection(error: RuntimeError) -> bool:
    """Whether an error is of the connection between processes."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


@contextmanager
def joining(workers: int, timeout: float) -> Iterator[None]:
    """Say that the processes of a run have not found one another.

    Args:
        workers: how many there are.
        timeout: how long they wait for one another (s).

    Raises:
        RunError: instead of an error of the connection.
    """
    try:
        yield
    except RuntimeError as error:
        if not of_connection(error):
            raise
        details = [("said", str(error).splitlines()[0])]
        hint = f"start all {workers} within --timeout {timeout:g} s; a free MASTER_PORT"
        text = "the processes of the run have not found one another"
        raise RunError(diagnostic(text, details, hint)) from error


@contextmanager
def noticing_loss(hint: str) -> Iterator[None]:
    """Say that another process of a run is gone, in place of the error of torch's connection.

    Args:
        hint: what to do then.

    Raises:
        RunError: instead of an error of a collective operation.
    """
    try:
        yield
    except RuntimeError as error:
        if not of_connection(error):
            raise
        details = [("said", str(error).splitlines()[0])]
        raise RunError(diagnostic("another process of the run is gone", details, hint)) from error
