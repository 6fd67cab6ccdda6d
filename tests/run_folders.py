"""Folders of small runs: how they are made, changed and found in a list."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from elman.train.run import checkpoint
from elman.train.run import run as running
from elman.train.tasks.text.config import TextConfig

FILES = ("config.json", "facts.json", "result.json", "metrics.csv")
JSON = FILES[:3]
SMALL = (
    *("--hidden=8", "--embedding=4", "--layers=1", "--batch=4", "--bptt=8", "--steps=6"),
    *("--validation-chars=100", "--engine=aten", "--accelerator=cpu", "--threads=1"),
    *("--minutes=0.01", "--validate-every=3", "--log-every=1"),
)


def small_run(root: Path, level: str = "char") -> Path:
    """Train a small language model for two steps; its folder."""
    root.mkdir(parents=True, exist_ok=True)
    text = root / "text.txt"
    text.write_text("".join(random.Random(0).choices("the cat\n", k=2000)))
    sizes = {"hidden": 8, "embedding": 4, "layers": 1, "batch": 4, "bptt": 8, "steps": 2}
    place = {"engine": "reference", "accelerator": "cpu", "threads": 1, "validate_every": 2}
    config = TextConfig(data=str(text), level=level, validation_chars=100, **sizes, **place)
    console = Console(file=io.StringIO())
    return running.start(config, root, console, comparing=False).folder.path


def forge(folder: Path, change: Callable[[dict[str, Tensor], dict[str, Any]], object]) -> None:
    """Change tensors and facts of a run's checkpoints, and write them with the hashes of that."""
    for path in (folder / "checkpoints").glob("*-*"):
        point = checkpoint.read(path)
        change(point.tensors, point.facts)
        checkpoint.write_checkpoint(path.parent, path.name.partition("-")[0], point)


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
