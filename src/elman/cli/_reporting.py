"""From a run folder to its report: what `train` knows, in the terms of `report`."""

from __future__ import annotations

from dataclasses import asdict, astuple
from pathlib import Path

from elman.errors import RunError
from elman.report import Level, Pairs, RunPage, Scale, write_report
from elman.train.loop.config import Config
from elman.train.loop.metrics import COLUMNS
from elman.train.run.outcome import in_words, speed_in_words
from elman.train.run.record import Compared, Record, Skipped, Summary, summarise


def report_run(record: Record) -> Path:
    """Write report.html into a run folder, whether the run is complete or not. Raises RunError:
    there is no configuration to tell what ran, or the disk takes no page."""
    if record.config is None:
        raise RunError(
            "there is nothing to report", path=record.folder.path, found=damage_in_words(record)
        )
    return write_report(record.folder.report, page_of(record, record.config))


def page_of(record: Record, config: Config) -> RunPage:
    """Collect what the report of a run tells; what is damaged is named, and the rest is shown."""
    summary, facts, result = summarise(record, config), record.facts, record.result
    speed = result.speed if result else Skipped("there is no result yet")
    baseline, words = summary.baseline, summary.words
    columns = {name: [getattr(row, name) for row in record.rows] for name in COLUMNS}
    return RunPage(
        name=summary.name,
        headlines=headlines(summary),
        notes=(
            f"{summary.model}, engine {summary.engine}",
            speed_in_words(speed, config.cell, summary.words),
            *([damage_in_words(record)] if record.damages else ()),
        ),
        curves=columns,
        baseline=baseline and Level(baseline.name, baseline.loss, baseline.score),
        items=words.items,
        loss=Scale("Loss", words.loss, words.form),
        score=Scale(
            words.score.title.capitalize(), words.score.axis, words.score.form, words.score.limits
        ),
        speeds=asdict(speed.items_per_s) if isinstance(speed, Compared) else {},
        sample=result.sample if result else "",
        tables={
            **({"Held-out data": result.table} if result and result.table else {}),
            "Configuration": config.to_json(),
            "Data": {k: value for k, value in facts.content.items() if k != "machine"}
            if facts
            else {},
            "Machine": facts.machine if facts else {},
        },
        choices=result.choices if result else {},
        shown=tuple(Pairs(*astuple(pairs)) for pairs in result.shown) if result else (),
    )


def damage_in_words(record: Record) -> str:
    """Write what is wrong with a run's files on one line."""
    return "damaged: " + "; ".join(f"{name}: {why}" for name, why in record.damages.items())


def headlines(summary: Summary) -> tuple[tuple[str, str], ...]:
    """Write the most important numbers and what they are."""
    words, found = summary.words, []
    beside = f"; {in_words(summary.baseline, words)}" if summary.baseline else ""
    beside += f"; weights of step {summary.best_step}" if summary.best_step is not None else ""
    if summary.valid_loss is not None and words.headline == "loss":
        found.append((f"{summary.valid_loss:{words.form}}", f"{words.loss} in validation{beside}"))
    elif summary.valid_score is not None:
        number = format(summary.valid_score, words.score.form)
        found.append((number, f"{words.score.title} in validation{beside}"))
    if summary.items_per_s is not None:
        text = f"{words.items}/s in training; step {summary.step} of {summary.steps}"
        found.append((f"{summary.items_per_s:,.0f}", text))
    return tuple(found)
