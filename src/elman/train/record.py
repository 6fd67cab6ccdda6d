"""What a run folder holds, read in one place: each file with its types and ranges, or why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from elman.errors import RunError, diagnostic
from elman.train.config import Config
from elman.train.folder import RunFolder
from elman.train.metrics import Row, read_metrics
from elman.train.predictions import Frames, Points, Traces
from elman.train.stored import Count, DamageError, Positive, Share, filled
from elman.train.task import Baseline
from elman.train.tasks import read_config

Value = TypeVar("Value")


@dataclass(frozen=True)
class Facts:
    """facts.json: what was known when a run began.

    Attributes:
        digest, size: of the data.
        baseline: what the model has to beat.
        machine: facts about it, by name.
        content: all of the file, with what the task tells of its data.
    """

    digest: str
    size: str
    baseline: Baseline
    machine: dict[str, Any]
    content: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Quartiles:
    """Items per second, slowest quartile first."""

    q1: Positive
    median: Positive
    q3: Positive

    def __post_init__(self) -> None:
        if not self.q1 <= self.median <= self.q3:
            raise ValueError("the quartiles are not in their order")


@dataclass(frozen=True)
class Both:
    """Of a model and of its twin on torch.nn."""

    elman: Quartiles
    torch: Quartiles


@dataclass(frozen=True)
class Compared:
    """The speed beside torch.nn.

    Attributes:
        waited: share of the time for which threads wanted a core and had none; runs of an older
            elman do not know.
    """

    items_per_s: Both
    ratio: Positive
    largest_logit_difference: float
    waited: Share = 0.0


@dataclass(frozen=True)
class Skipped:
    """Why the speed was not compared."""

    skipped: str


@dataclass(frozen=True)
class Result:
    """result.json: what came out of a complete run.

    Attributes:
        steps: training steps done.
        valid_loss: of the trained model.
        valid_accuracy, valid_r2: its score, by the task's measure.
        best_step: of the trained model, which did best in validation; runs of an older elman: None.
        speed: beside torch.nn.
        choices: which engine and plan each recurrent module uses.
        sample: generated text.
        table: what the task shows, by name.
        shown: predictions beside their targets.
        content: all of the file.
    """

    steps: Count
    valid_loss: float
    speed: Skipped | Compared
    choices: dict[str, Any]
    valid_accuracy: Share | None = None
    valid_r2: float | None = None
    best_step: Count | None = None
    sample: str = ""
    table: dict[str, Any] = field(default_factory=dict)
    shown: list[Traces | Points | Frames] = field(default_factory=list)
    content: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """A run folder, complete or not, whole or damaged.

    Attributes:
        config, facts: None if damaged.
        result: None if damaged, or the run is not complete.
        rows: of metrics.csv; none if it is damaged.
        damages: by file, what is wrong with it, in one line.
    """

    folder: RunFolder
    config: Config | None
    facts: Facts | None
    result: Result | None
    rows: list[Row]
    damages: dict[str, str]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.path.name

    def require(self) -> tuple[Config, Facts]:
        """Return what a run needs to go on; metrics.csv it has from its checkpoint.

        Raises:
            RunError: if something of it is damaged.
        """
        bad = {name: why for name, why in self.damages.items() if name != "metrics.csv"}
        if self.config is not None and self.config.steps is None:
            bad["config.json"] = "steps: expected an integer, got None"
        if bad or self.config is None or self.facts is None:
            details = [("path", str(self.folder.path))]
            details += [("found", f"{name}: {why}") for name, why in bad.items()]
            raise RunError(diagnostic("the run is damaged", details))
        return self.config, self.facts


def read_record(folder: RunFolder) -> Record:
    """Read a run folder; what cannot be read is listed in `damages`, and the rest is there."""
    damages: dict[str, str] = {}

    def part(name: str, read: Callable[[RunFolder], Value]) -> Value | None:
        try:
            return read(folder)
        except DamageError as damage:
            damages[name] = str(damage)
            return None

    return Record(
        folder=folder,
        config=part("config.json", lambda folder: read_config(needed(folder, "config"))),
        facts=part("facts.json", lambda folder: with_all(Facts, needed(folder, "facts"))),
        result=part("result.json", result_of),
        rows=part("metrics.csv", lambda folder: read_metrics(folder.metrics)) or [],
        damages=damages,
    )


def needed(folder: RunFolder, name: str) -> dict[str, Any]:
    """Read a file that every run has.

    Raises:
        DamageError: if it is damaged or not there.
    """
    content = folder.read(name)
    if content is None:
        raise DamageError("it is missing")
    return content


def result_of(folder: RunFolder) -> Result | None:
    """Read what came out; None if the run is not complete.

    Raises:
        DamageError: if the file is damaged.
    """
    content = folder.read("result")
    return None if content is None else with_all(Result, content)


def with_all(kind: type[Value], content: dict[str, Any]) -> Value:
    """Read a file's content, and keep all of it under `content`.

    Raises:
        DamageError: if a field is missing, or is not what it should be.
    """
    return replace(filled(kind, content), content=content)
