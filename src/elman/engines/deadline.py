"""Deadlines of calls, for kernels with an unbounded number of iterations.

The benchmark of candidates sets a deadline; a loop whose iterations are not bounded checks it in
each one. Outside of :func:`within` a call runs to its end.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_ends: ContextVar[float | None] = ContextVar("deadline", default=None)


class DeadlineError(Exception):
    """A call exceeded its deadline. The tuner catches it; users never see it."""


@contextmanager
def within(seconds: float) -> Generator[None]:
    """Abandon calls inside the block that have not ended after some time (s)."""
    token = _ends.set(time.perf_counter() + seconds)
    try:
        yield
    finally:
        _ends.reset(token)


def check() -> None:
    """Check the deadline. Raises DeadlineError: it has passed."""
    ends = _ends.get()
    if ends is not None and time.perf_counter() > ends:
        raise DeadlineError
