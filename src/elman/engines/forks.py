"""Detection of forked children: the parent's threads are gone, and kernels waiting for them hang.

elman imports this module at once, so that it sees every later fork.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

import torch

forked = False  # whether this process is the child of a fork


def _mark_forked() -> None:
    global forked
    forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)


@contextmanager
def own_threads() -> Generator[None]:
    """Context in which torch uses one thread in a forked child."""
    if not forked:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
