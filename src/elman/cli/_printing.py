"""Texts of others on a terminal."""

from __future__ import annotations

import sys

from rich.text import Text


def plain(text: object) -> Text:
    """Return a text as it stands: brackets are no markup, what cannot be printed is escaped."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    return Text("".join(shown))


def print_all() -> None:
    """Let output escape what its encoding lacks (half a character of a file name) and not raise."""
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")
