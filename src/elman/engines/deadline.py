"""Deadlines of calls, for kernels with an unbounded number of iterations.

Who times candidates sets it; a loop that may take many times as long as it was meant to asks in
each turn. Outside of such a block nobody waits for less than the result.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_ends: ContextVar[float | None] = ContextVar("deadline", default=None)


class DeadlineError(Exception):
    """A call was given up, since it took too long: no error of the user's, and never shown."""


@contextmanager
def within(seconds: float) -> Generator[None]:
    """Inside, calls are given up once so much time is gone (s)."""
    token = _ends.set(time.perf_counter() + seconds)
    try:
        yield
    finally:
        _ends.reset(token)


def check() -> None:
    """Ask, in a loop. Raises DeadlineError: the time is over."""
    ends = _ends.get()
    if ends is not None and time.perf_counter() > ends:
        raise DeadlineError
