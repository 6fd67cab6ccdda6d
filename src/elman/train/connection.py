"""Errors of the connection between processes, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch.distributed as dist

from elman.errors import RunError, diagnostic

LOOPBACK = ("127.", "::1]")  # how addresses of this machine itself begin


def of_connection(error: RuntimeError) -> bool:
    """Whether an error is of the connection between processes."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


@contextmanager
def _told(text: str, hint: str, hint_of_loopback: str = "") -> Iterator[None]:
    """Errors of the connection as one of ours; with another hint if it was to this machine."""
    try:
        yield
    except RuntimeError as error:
        if not of_connection(error):
            raise
        said = str(error).splitlines()[0]
        if hint_of_loopback and any(f"[{address}" in said for address in LOOPBACK):
            hint = hint_of_loopback
        raise RunError(diagnostic(text, [("said", said)], hint)) from error


def joining(workers: int, timeout: float, nodes: int = 1) -> AbstractContextManager[None]:
    """Say that the processes of a run have not found one another.

    Args:
        workers: how many there are.
        timeout: how long they wait for one another (s).
        nodes: on how many machines. Gloo takes the address that a machine's name has there, which
            may be one that leads no further than the machine.

    Raises:
        RunError: instead of an error of the connection.
    """
    text = "the processes of the run have not found one another"
    hint = f"start all {workers} within --timeout {timeout:g} s; a free MASTER_PORT"
    if nodes == 1:
        return _told(text, hint)
    named = "GLOO_SOCKET_IFNAME=eth0 on each machine, as its interface to the others is called"
    return _told(text, hint, named)


def noticing_loss(hint: str) -> AbstractContextManager[None]:
    """Say that another process of a run is gone, in place of the error of torch's connection.

    Args:
        hint: what to do then.

    Raises:
        RunError: instead of an error of a collective operation.
    """
    return _told("another process of the run is gone", hint)
