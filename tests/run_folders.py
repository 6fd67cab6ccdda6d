"""Folders of small runs: how they are made, changed and found in a list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILES = ("config.json", "facts.json", "result.json", "metrics.csv")
JSON = FILES[:3]
SMALL = (
    *("--hidden=8", "--embedding=4", "--layers=1", "--batch=4", "--bptt=8", "--steps=6"),
    *("--validation-chars=100", "--engine=aten", "--accelerator=cpu", "--threads=1"),
    *("--minutes=0.01", "--validate-every=3", "--log-every=1"),
)


def row_of(said: str, name: str) -> str:
    """Find the row of a run in the table."""
    (row,) = [line for line in said.splitlines() if line.startswith(f"│ {name} ")]
    return " ".join(row.split())


def changed(path: Path, place: str, value: Any) -> None:
    """Put another value at a place ("baseline.loss") of a JSON file."""
    content = json.loads(path.read_text())
    *outer, last = place.split(".")
    inner = content
    for name in outer:
        inner = inner[name]
    inner[last] = value
    path.write_text(json.dumps(content))
