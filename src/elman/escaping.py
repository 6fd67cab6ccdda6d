"""Names in texts of other languages: whatever a name is, a comment, a string and a line end where
they should. One function per language; names of cells, inputs, classes and runs are anybody's.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable


def printable(text: str, keep: str = "\n\t") -> str:
    """A text for a terminal: what it would act on, or cannot show, is written as an escape.

    Args:
        keep: what stays though it is not printable.
    """
    return "".join(
        c if c in keep or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def xml_text(text: str) -> str:
    """A text between tags of XML, SVG and HTML, or within an attribute's quotes."""
    return html.escape(printable(text))


def c_comment(text: str) -> str:
    """Escape text for a comment of C: one line of ASCII that neither ends nor begins a comment."""
    line = printable(text, "").encode("ascii", "backslashreplace").decode()
    return line.replace("*/", "* /").replace("/*", "/ *")


def c_name(text: str) -> str:
    """An identifier of C: what has no place in one is written as its number."""
    name = "".join(c if re.match(r"\w", c, re.ASCII) else f"u{ord(c):04x}" for c in text)
    return f"_{name}" if name[:1].isdigit() else name


def c_names(names: Iterable[str], reserved: Collection[str], capitals: Iterable[str]) -> list[str]:
    """Identifiers of C for names, which are not taken, and differ by more than capitals.

    Args:
        reserved: by other things.
        capitals: what they may not be in capitals.
    """
    identifiers: list[str] = []
    upper = set(capitals)
    for name in map(c_name, names):
        while name in reserved or name.upper() in upper:
            name += "_"
        identifiers.append(name)
        upper.add(name.upper())
    return identifiers
