"""The files of a run folder, read with their types and ranges; and a run in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from elman.errors import RunError, diagnostic
from elman.train.loop.config import Config
from elman.train.loop.metrics import Row, read_metrics
from elman.train.loop.task import Baseline, Labels, Pairs
from elman.train.run.folder import RunFolder
from elman.train.run.stored import Count, DamageError, Positive, Share, decode
from elman.train.tasks.registry import labels_of, read_config
from elman.tuning.machine import describe_waiting

Value = TypeVar("Value")


@dataclass(frozen=True)
class Facts:
    """facts.json: data and machine at the beginning of a run.

    Attributes:
        digest, size: of the data.
        baseline: which the model has to beat.
        machine: facts about it, by name.
        comparing: whether the speed is compared with torch.nn's at the end.
        content: all of the file, with what the task tells of its data.
    """

    digest: str
    size: str
    baseline: Baseline
    machine: dict[str, Any]
    comparing: bool = True
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
    """Quartiles of a model and of its twin on torch.nn."""

    elman: Quartiles
    torch: Quartiles


@dataclass(frozen=True)
class Comparison:
    """The speed beside torch.nn.

    Attributes:
        waited: share of the time for which threads wanted a core and had none.
    """

    items_per_s: Both
    ratio: Positive
    largest_logit_difference: float
    waited: Share


@dataclass(frozen=True)
class Skipped:
    """The reason why the speed was not compared."""

    skipped: str


@dataclass(frozen=True)
class Result:
    """result.json: the result of a complete run.

    Attributes:
        steps: training steps done.
        valid_loss: of the trained model.
        valid_score: its score, by the task's measure.
        best_step: of the trained model, which did best in validation.
        speed: beside torch.nn.
        choices: which engine and plan each recurrent module uses.
        sample: generated text.
        table: what the task shows, by name.
        shown: predictions beside their targets.
        content: all of the file.
    """

    steps: Count
    best_step: Count
    valid_loss: float
    speed: Skipped | Comparison
    choices: dict[str, Any]
    valid_score: float | None = None
    sample: str = ""
    table: dict[str, Any] = field(default_factory=dict)
    shown: list[Pairs] = field(default_factory=list)
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
        """Return what a run needs to go on; metrics.csv it has from its checkpoint. Raises
        RunError: something of it is damaged."""
        bad = {name: reason for name, reason in self.damages.items() if name != "metrics.csv"}
        if self.config is not None and self.config.steps is None:
            bad["config.json"] = "steps: expected an integer, got None"
        if bad or self.config is None or self.facts is None:
            details = [("path", str(self.folder.path))]
            details += [("found", f"{name}: {reason}") for name, reason in bad.items()]
            raise RunError(diagnostic("the run is damaged", details))
        return self.config, self.facts


def read_record(folder: RunFolder) -> Record:
    """Read a run folder; what cannot be read is listed in `damages`, and the rest is there."""
    damages: dict[str, str] = {}

    def part(name: str, reader: Callable[[RunFolder], Value]) -> Value | None:
        try:
            return reader(folder)
        except DamageError as damage:
            damages[name] = str(damage)
            return None

    return Record(
        folder=folder,
        config=part("config.json", lambda folder: read_config(read_needed(folder, "config"))),
        facts=part("facts.json", lambda folder: decode_file(Facts, read_needed(folder, "facts"))),
        result=part("result.json", read_result),
        rows=part("metrics.csv", lambda folder: read_metrics(folder.metrics)) or [],
        damages=damages,
    )


def read_needed(folder: RunFolder, name: str) -> dict[str, Any]:
    """Read a file that every run has. Raises DamageError: it is damaged or not there."""
    content = folder.read(name)
    if content is None:
        raise DamageError("it is missing")
    return content


def read_result(folder: RunFolder) -> Result | None:
    """Read the result; None if the run is not complete. Raises DamageError: the file is
    damaged."""
    content = folder.read("result")
    return None if content is None else decode_file(Result, content)


def decode_file(kind: type[Value], content: dict[str, Any]) -> Value:
    """Read a file's content, and keep all of it under `content`. Raises DamageError: a field is
    missing, or is not what it should be."""
    return replace(decode(kind, content), content=content)


@dataclass(frozen=True)
class Summary:
    """A run's row in a list of runs; None where unknown (yet). `busy` is a warning about the
    ratio."""

    name: str
    config: Config
    model: str
    step: int
    steps: int | None
    labels: Labels
    valid_loss: float | None
    valid_score: float | None
    best_step: int | None
    baseline: Baseline | None
    items_per_s: float | None
    ratio: float | None
    busy: str
    engine: str


def summarise(record: Record, config: Config) -> Summary:
    """Put a run, complete or not, and its configuration in one line."""
    rows, facts, result = record.rows, record.facts, record.result
    last = rows[-1] if rows else None
    scored = result or next((row for row in reversed(rows) if row.valid_loss is not None), None)
    speed, labels = result.speed if result else None, labels_of(config)
    return Summary(
        name=record.name,
        config=config,
        model=f"{config.cell} {config.layers} x {config.hidden}",
        step=last.step if last else 0,
        steps=result.steps if result else config.steps,  # fewer where time was over
        labels=labels,
        valid_loss=scored.valid_loss if scored else None,
        valid_score=scored.valid_score if scored else None,
        best_step=result.best_step if result else None,
        baseline=facts.baseline if facts else None,
        items_per_s=last.items / last.train_seconds if last else None,
        ratio=speed.ratio if isinstance(speed, Comparison) else None,
        busy=describe_waiting(speed.waited) if isinstance(speed, Comparison) else "",
        engine=", ".join(engines(result.choices) if result else []) or config.engine,
    )


def engines(choices: Any) -> list[str]:
    """Collect the names of the engines in a record of choices, however deep."""
    if isinstance(choices, list):
        return sorted({name for part in choices for name in engines(part)})
    if not isinstance(choices, dict):
        return []
    names = {choices["engine"]} if isinstance(choices.get("engine"), str) else set()
    return sorted(names.union(*(engines(part) for part in choices.values())))


def differences(summaries: list[Summary]) -> dict[str, list[Any]]:
    """Return the configuration fields in which runs differ, with each run's value."""
    configs = [summary.config.to_json() for summary in summaries]
    names = dict.fromkeys(name for config in configs for name in config)
    together = {name: [config.get(name) for config in configs] for name in names}
    return {
        name: values
        for name, values in together.items()
        if len({json.dumps(value) for value in values}) > 1
    }
