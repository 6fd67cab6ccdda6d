"""Rows on disk: one JSON object per line, appended as measured; the last row of a case counts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elman.errors import RunError, diagnostic
from elman.files import missing, read_file
from elman.tuning.machine import describe_waiting

Row = dict[str, Any]
STUDY = "told"  # the field of what a study says of itself, which tables show


def study(text: str, **figures: Any) -> Row:
    """The row of a study: what tables show of it, and its figures."""
    return {**figures, STUDY: text}


def curve(title: str, x: str, y: str, log: str, lines: Mapping[str, Any]) -> dict[str, Any]:
    """A plot of a row.

    Args:
        title, x, y: of the plot, of its axes.
        log: the names of the axes that are logarithmic, as "xy".
        lines: by name, pairs of place and value; a value that is not known is None.
    """
    columns = {name: [*map(list, zip(*pairs))] for name, pairs in lines.items() if pairs}
    return {"title": title, "x": x, "y": y, "log": log, "lines": columns}


def busy_in_words(row: Row) -> str:
    """That other programs took the cores from a row's measurement; "" if none did."""
    return describe_waiting(row.get("waited", 0.0))


def read_rows(path: Path) -> dict[str, Row]:
    """The last row of each case, by name; a line cut short by a stop counts as not measured.

    Raises:
        RunError: the file cannot be read.
    """
    try:
        text = read_file(path).decode("utf-8", errors="replace")
    except OSError as error:
        if missing(path, error):
            return {}
        raise RunError(_describe("results cannot be read", path, error)) from error
    rows: dict[str, Row] = {}
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("case"), str):
            rows[row["case"]] = row
    return rows


def append_row(path: Path, row: Row) -> None:
    """Append a row; the disk has it when this returns.

    Raises:
        RunError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            start = b"" if _ends_line(file) else b"\n"
            file.write(start + json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(_describe("results cannot be written", path, error)) from error


def _ends_line(file: Any) -> bool:
    """True if a file is empty or ends with a newline."""
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _describe(text: str, path: Path, error: OSError) -> str:
    return diagnostic(text, [("path", str(path)), ("error", str(error.strerror))])
