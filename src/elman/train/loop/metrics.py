"""Metrics of a run: the sums so far, and metrics.csv, a row every few steps for people, plots and
comparisons.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

from elman.files import write_atomically
from elman.train.run.stored import (
    Count,
    DamageError,
    Positive,
    Range,
    decode,
    number,
    read_bytes,
)

Seconds = Annotated[float, Range(0, 1e18)]


@dataclass
class Tally:
    """Sums of a run so far, to which its loop adds.

    Attributes:
        step: training steps done.
        seconds: time in training steps, all of them (s).
        loss, norm, since_s: sums since the last row of metrics.csv; losses are scaled.
        count: steps since that row, without those that were skipped.
        valid_loss: of the last validation; None before the first.
        valid_score: its score, by the task's measure.
        fallbacks: calls since that row that engine deer had to run step by step.
        all_fallbacks: the same since the beginning.
        skipped: steps that changed nothing, because loss or gradient was not finite.
        skipped_in_a_row: the last of them, if no other came since.
        steps: of the whole run, where its time is over before all that were planned; else None.
    """

    step: Count = 0
    seconds: Seconds = 0.0
    loss: float = 0.0
    norm: float = 0.0
    since_s: Seconds = 0.0
    count: Count = 0
    valid_loss: float | None = None
    valid_score: float | None = None
    fallbacks: Count = 0
    all_fallbacks: Count = 0
    skipped: Count = 0
    skipped_in_a_row: Count = 0
    steps: Count | None = None

    def add(self, seconds: float, fallbacks: int) -> None:
        """Count one more step."""
        self.step += 1
        self.seconds += seconds
        self.since_s += seconds
        self.fallbacks += fallbacks
        self.all_fallbacks += fallbacks

    def start_row(self) -> None:
        """Begin the sums of the next row."""
        self.loss = self.norm = self.since_s = 0.0
        self.count = self.fallbacks = 0


@dataclass(frozen=True)
class Row:
    """A row of metrics.csv.

    Attributes:
        step, items: training steps done, characters (or sequences) trained on.
        train_loss, grad_norm: means since the row before (unit of the task, stored in facts.json).
        lr: learning rate of the last step.
        valid_loss: in validation, where one was due.
        valid_score: its score, by the task's measure.
        items_per_s: of training steps since the row before.
        train_seconds: all training steps so far (s).
        fallbacks: layers that engine deer had to run step by step, since the row before.
    """

    step: Count
    items: Count
    train_loss: float
    grad_norm: float
    lr: float
    valid_loss: float | None
    valid_score: float | None
    items_per_s: Positive
    train_seconds: Positive
    fallbacks: Count


COLUMNS = tuple(column.name for column in fields(Row))


@dataclass
class MetricsFile:
    """Appends rows to a file and keeps them, so that a failed write is made good later."""

    path: Path
    text: str = field(default=",".join(COLUMNS) + "\n")
    complete: bool = field(default=False, init=False)

    def append(self, row: Row) -> OSError | None:
        """Add a row; returns the error if the disk did not take it."""
        line = line_of(row)
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
            write_atomically(self.path, self.text.encode(), durable=True)
        except OSError as error:
            return error
        self.complete = True
        return None


def line_of(row: Row) -> str:
    """Write a row as it stands in the file."""
    return ",".join("" if value is None else repr(value) for value in vars(row).values()) + "\n"


def read_metrics(path: Path) -> list[Row]:
    """Read the rows of a metrics.csv; none if there is no file yet.

    A last line without its end is left out: it is being written, or its process was killed.

    Raises:
        DamageError: if the file, or a line of it, is not what a run writes.
    """
    content = read_bytes(path)
    return [] if content is None else parse_metrics(content)


def parse_metrics(content: bytes) -> list[Row]:
    """Read the rows of a metrics.csv from its bytes. Raises DamageError: they, or a line of them,
    are not what a run writes."""
    complete = content[: content.rfind(b"\n") + 1]
    try:
        lines = csv.reader(io.StringIO(complete.decode("utf-8")), strict=True)
        columns = next(lines, [])
        if absent := [name for name in COLUMNS if name not in columns]:
            raise DamageError(f"there is no column {absent[0]}" if complete else "it is empty")
        return [parse_row(columns, texts, lines.line_num) for texts in lines if texts]
    except UnicodeDecodeError as error:
        raise DamageError(f"it is not text: {error.reason} at offset {error.start}") from error
    except csv.Error as error:
        raise DamageError(f"line {lines.line_num}: {error}") from error


def parse_row(columns: list[str], texts: list[str], line: int) -> Row:
    """Read one line's texts as numbers. Raises DamageError: there are more or fewer than columns,
    or one is out of range or not a number."""
    if len(texts) != len(columns):
        raise DamageError(f"line {line}: {len(texts)} values in {len(columns)} columns")
    try:
        return decode(Row, {name: number(text) for name, text in zip(columns, texts)})
    except DamageError as error:
        raise DamageError(f"line {line}: {error}") from error
