"""Text on a terminal or in a pipe; signals that end a command without a traceback."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from elman.escaping import printable
from elman_command import end_at_once

PIPED_WIDTH = 160


def plain(text: object) -> Text:
    """Return a text as it stands: brackets are not markup, what cannot be printed is escaped."""
    return Text(printable(str(text), ""))


def epilog(examples: Iterable[str]) -> str:
    """Write command lines to copy below the help of a command."""
    return "\n\n".join(["Examples:", *examples])


def flowing(text: str) -> str:
    """Join the lines of each paragraph, so that the help breaks them where the terminal ends."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def say(console: Console, text: str) -> None:
    """Print lines as they are."""
    console.print(Text(printable(text)), soft_wrap=True)


def print_all() -> None:
    """Let output escape what its encoding lacks (half a character of a file name) and not raise."""
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")


def wide_console(width: int = PIPED_WIDTH) -> Console:
    """Return the terminal, or a console of so many columns where the output goes elsewhere."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def full_width(console: Console, table: Table) -> int:
    """Columns that a table takes if no cell is broken into lines."""
    return console.measure(table, options=console.options.update(width=10_000)).maximum


LINES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class SignalExit(SystemExit):
    """A signal ended the command; its status tells which."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.line = LINES[signal.Signals(number)]


def raise_exit(number: int, frame: FrameType | None) -> NoReturn:
    """Signal handler that ends the command."""
    raise SignalExit(number)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Make SIGINT and SIGTERM raise `SignalExit` in the block (on the main thread, and unless
    another handler is set)."""
    before = {number: signal.getsignal(number) for number in LINES if on_main_thread()}
    free = (signal.SIG_DFL, signal.default_int_handler, end_at_once)
    replaced = {number: handler for number, handler in before.items() if handler in free}
    for number in replaced:
        signal.signal(number, raise_exit)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def on_main_thread() -> bool:
    """Whether this is the thread that handles signals."""
    return threading.current_thread() is threading.main_thread()
