"""metrics.csv: one row now and then, for people, plots and comparisons."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field, fields
from pathlib import Path

from elman.train.atomic import write_file


@dataclass(frozen=True)
class Row:
    """What is known after a step.

    Attributes:
        step, items: training steps done, characters (or sequences) trained on.
        train_loss, grad_norm: means since the row before (unit of the task, stored in facts.json).
        lr: learning rate of the last step.
        valid_loss, valid_accuracy: in validation, where one was due.
        items_per_s: of training steps since the row before.
        train_seconds: all training steps so far (s).
        fallbacks: layers that engine deer had to run step by step, since the row before.
    """

    step: int
    items: int
    train_loss: float
    grad_norm: float
    lr: float
    valid_loss: float | None
    valid_accuracy: float | None
    items_per_s: float
    train_seconds: float
    fallbacks: int = 0


COLUMNS = tuple(column.name for column in fields(Row))
TIMES = ("items_per_s", "train_seconds")  # the columns that no two runs share


@dataclass
class MetricsFile:
    """Appends rows to a file and keeps them, so that a failed write is made good later."""

    path: Path
    text: str = field(default=",".join(COLUMNS) + "\n")
    complete: bool = field(default=False, init=False)

    def append(self, row: Row) -> OSError | None:
        """Add a row; returns the error if the disk did not take it."""
        values = ["" if value is None else repr(value) for value in vars(row).values()]
        line = ",".join(values) + "\n"
        self.text += line
        if not self.complete:
            return self.rewrite()
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            self.complete = False
            return error
        return None

    def rewrite(self) -> OSError | None:
        """Write all rows afresh; returns the error if the disk did not take them."""
        try:
            write_file(self.path, self.text.encode())
        except OSError as error:
            return error
        self.complete = True
        return None


def read_metrics(path: Path) -> list[Row]:
    """Read the rows of a metrics.csv; a last line cut in the middle is left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    whole = text[: text.rfind("\n") + 1]
    rows = []
    for values in csv.DictReader(io.StringIO(whole)):
        try:
            rows.append(parse_row(values))
        except (KeyError, TypeError, ValueError):
            continue
    return rows


def parse_row(values: dict[str, str]) -> Row:
    """Read one row's texts as numbers."""
    return Row(
        step=int(values["step"]),
        items=int(values["items"]),
        train_loss=float(values["train_loss"]),
        grad_norm=float(values["grad_norm"]),
        lr=float(values["lr"]),
        valid_loss=optional(values["valid_loss"]),
        valid_accuracy=optional(values["valid_accuracy"]),
        items_per_s=float(values["items_per_s"]),
        train_seconds=float(values["train_seconds"]),
        fallbacks=int(values.get("fallbacks") or 0),
    )


def optional(text: str) -> float | None:
    """Read a number that may not be there."""
    return float(text) if text else None
