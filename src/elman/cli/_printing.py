"""Text on a terminal, or where a terminal would be."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from elman.escaping import printable

PIPED_WIDTH = 160


def plain(text: object) -> Text:
    """Return a text as it stands: brackets are not markup, what cannot be printed is escaped."""
    return Text(printable(str(text), ""))


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
