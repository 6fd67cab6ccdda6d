"""Cells compared as classifiers, each with the best of the same settings.

    python -m benchmarks.scripts.rivals --data DIR --out FILE.jsonl [--tasks worms,digits]
        [--cells gru,lru] [--trials 12] [--steps N]

DIR has the folders that :data:`TASKS` name. Each cell tries the same settings, drawn once: learning
rate, layers, units and noise. A fifth of the training half chooses among them, by one seed, and
chooses the weights; three seeds of the best settings then read the held-out half, once each. A row
has the settings, what each of them reached, and both scores of each seed. A cell that has a row is
not run again.
"""

from __future__ import annotations

import argparse
import io
import random
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.machine import code, facts
from benchmarks.rows import Row, append_row, read_rows
from elman.train.run.run import start
from elman.train.tasks.sequences.config import ImagesConfig, SequenceConfig, SeriesConfig

CELLS = ("gru", "lstm", "lem", "lru", "s4d", "mingru", "rglru", "unicornn", "gated_delta_net")
Task = tuple[type[SequenceConfig], str, dict[str, Any]]
TASKS: dict[str, Task] = {
    "worms": (SeriesConfig, "ucr-worms", {"patch": 5, "steps": 600, "batch": 32}),
    "digits": (SeriesConfig, "fsdd", {"patch": 16, "steps": 300, "batch": 50}),
    "pixels": (ImagesConfig, "mnist", {"steps": 600, "batch": 50}),
    "colours": (ImagesConfig, "cifar10", {"steps": 600, "batch": 50}),
}
SPACE: dict[str, Sequence[Any]] = {
    "lr": (1e-3, 2e-3, 5e-3, 1e-2, 2e-2),
    "layers": (1, 2, 4),
    "hidden": (32, 64, 128),
    "noise": (0.0, 0.05, 0.1),
}
SEEDS = (1, 2, 3)  # the search has seed 0
SHARE = 0.2  # of the training half


def settings(trials: int) -> list[dict[str, Any]]:
    """The settings that every cell tries: the first of all in a random order."""
    combinations = [dict(zip(SPACE, values, strict=True)) for values in product(*SPACE.values())]
    random.Random(1).shuffle(combinations)  # its first twelve have every value
    return combinations[:trials]


def scores(task: Task, options: dict[str, Any]) -> tuple[float, float]:
    """Accuracies of a run, of the share of the training half and of the held-out half."""
    kind, _, own = task
    run = {**own, **options, "residual": options["layers"] > 1, "validation_share": SHARE}
    config = kind.of({**run, "accelerator": "cpu", "threads": 1, "on_nonfinite": "skip"})
    with tempfile.TemporaryDirectory() as folder:
        console = Console(file=io.StringIO())
        result = start(config, Path(folder), console, comparing=False).result
    return result["valid_score"] or 0.0, result["test_score"] or 0.0


def measure(name: str, cell: str, data: Path, trials: int, further: dict[str, Any]) -> Row:
    """The row of a cell: a search, and runs of the best settings."""
    kind, folder, own = TASKS[name]
    task = kind, folder, {**own, **further, "data": str(data / folder)}
    tried = settings(trials)
    found = [scores(task, {**trial, "cell": cell, "seed": 0})[0] for trial in tried]
    best = tried[found.index(max(found))]
    both = [scores(task, {**best, "cell": cell, "seed": seed}) for seed in SEEDS]
    valid, test = (list(values) for values in zip(*both, strict=True))
    return {
        "case": f"{name} {cell}",
        "steps": task[2]["steps"],
        "tried": [trial | {"score": score} for trial, score in zip(tried, found, strict=True)],
        "best": best,
        "valid": valid,
        "test": test,
        **code(),
        "machine": facts(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Search for the cells that have no row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, type=Path, help="folder of the data sets")
    parser.add_argument("--out", required=True, type=Path, help="rows, a line each")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--cells", default=",".join(CELLS))
    parser.add_argument("--trials", type=int, default=12, help="settings that each cell tries")
    parser.add_argument("--steps", type=int, help="of each run, for a try")
    options = parser.parse_args(arguments)
    tasks, cells = options.tasks.split(","), options.cells.split(",")
    if unknown := {*tasks} - {*TASKS}:
        parser.error(f"there is no task {', '.join(sorted(unknown))}: {', '.join(TASKS)}")
    further = {"steps": options.steps} if options.steps else {}
    for name in tasks:
        for cell in cells:
            case = f"{name} {cell}"
            if case not in read_rows(options.out):
                row = measure(name, cell, options.data, options.trials, further)
                append_row(options.out, row)
            row = read_rows(options.out)[case]
            texts = (", ".join(f"{score:.1%}" for score in row[key]) for key in ("valid", "test"))
            print(f"{case:24} {'; held out '.join(texts)}; {row['best']}", flush=True)


if __name__ == "__main__":
    main()
