"""A run in one line, for lists and comparisons."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from elman.train.config import Config
from elman.train.record import Compared, Record
from elman.train.task import Baseline, Words
from elman.train.tasks import words_of
from elman.tuning.waiting import waiting_in_words


@dataclass(frozen=True)
class Summary:
    """What a list of runs shows; None where it is not known (yet). `busy` says what has to be known
    of the ratio."""

    name: str
    config: Config
    model: str
    step: int
    steps: int | None
    words: Words
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
    speed, words = result.speed if result else None, words_of(config)
    return Summary(
        name=record.name,
        config=config,
        model=f"{config.cell} {config.layers} x {config.hidden}",
        step=last.step if last else 0,
        steps=config.steps,
        words=words,
        valid_loss=scored.valid_loss if scored else None,
        valid_score=getattr(scored, words.score.column) if scored else None,
        best_step=result.best_step if result else None,
        baseline=facts.baseline if facts else None,
        items_per_s=last.items / last.train_seconds if last else None,
        ratio=speed.ratio if isinstance(speed, Compared) else None,
        busy=waiting_in_words(speed.waited) if isinstance(speed, Compared) else "",
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
