"""What comes before all else: how a signal ends a command, and an import that nothing disturbs.

A signal ends a command with one line and the status that shells expect, no traceback.

`import elman` imports this first. Only a process that is the command `elman` is touched: while it
imports, Ctrl-C ends it at once, since an exception could be lost in what is being imported. Then
signals are exceptions, so that everything under way is put away.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import PurePath
from types import FrameType
from typing import NoReturn

LINES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Ended(SystemExit):
    """A signal ended the command; its status tells which."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.line = LINES[signal.Signals(number)]


def is_command() -> bool:
    """Whether this process is `elman …` or `python -m elman …`, and has just begun."""
    if multiprocessing.parent_process() is not None:
        return False
    if sys.argv[:1] == ["-m"]:  # what a package's own imports see under -m
        words = sys.orig_argv
        return ("-m", "elman") in pairwise(words) or "-melman" in words
    return PurePath(sys.argv[0] if sys.argv else "").stem == "elman"


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """End this process, which has nothing to lose but what it has said."""
    with suppress(Exception):
        sys.stdout.flush()
    os.write(2, f"{LINES[signal.Signals(number)]}\n".encode())
    os._exit(128 + number)


def end(number: int, frame: FrameType | None) -> NoReturn:
    """End what is under way, and with it the command."""
    raise Ended(number)


@contextmanager
def no_collections() -> Iterator[None]:
    """Leave garbage alone in the block. What torch has made is looked through in each collection,
    which takes as long as all that elman does when it is imported."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Make SIGINT and SIGTERM raise `Ended` in the block (on the main thread, and unless somebody
    else minds them)."""
    before = {number: signal.getsignal(number) for number in LINES if on_main_thread()}
    free = (signal.SIG_DFL, signal.default_int_handler, leave)
    taken = {number: handler for number, handler in before.items() if handler in free}
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


def on_main_thread() -> bool:
    """Whether this is the thread that handles signals."""
    return threading.current_thread() is threading.main_thread()


if is_command() and on_main_thread():
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
if is_command():  # torch reads it when imported; what it would log comes as an error of ours
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
