"""Signals that end a command with one line and the status that shells expect, no traceback."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from elman_command import end_at_once

LINES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class SignalExit(SystemExit):
    """A signal ended the command; its status tells which."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.line = LINES[signal.Signals(number)]


def raise_exit(number: int, frame: FrameType | None) -> NoReturn:
    """End what is under way, and with it the command."""
    raise SignalExit(number)


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Make SIGINT and SIGTERM raise `SignalExit` in the block (on the main thread, and unless
    another handler is set)."""
    before = {number: signal.getsignal(number) for number in LINES if on_main_thread()}
    free = (signal.SIG_DFL, signal.default_int_handler, end_at_once)
    taken = {number: handler for number, handler in before.items() if handler in free}
    for number in taken:
        signal.signal(number, raise_exit)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def on_main_thread() -> bool:
    """Whether this is the thread that handles signals."""
    return threading.current_thread() is threading.main_thread()
