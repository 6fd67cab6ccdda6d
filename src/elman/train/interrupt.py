"""Ctrl-C as a wish: finish the step, write a checkpoint, end. A second one is what it was before,
and ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Wish:
    """Whether somebody asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def heeding_interrupts() -> Iterator[Wish]:
    """Turn SIGINT and SIGTERM into a wish while the block runs (in the main thread only)."""
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return

    def note(number: int, frame: FrameType | None) -> None:
        earlier = before[signal.Signals(number)]
        if wish and callable(earlier):
            earlier(number, frame)
        elif wish:
            raise KeyboardInterrupt
        wish.signal = number

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
