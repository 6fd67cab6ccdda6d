"""Reports of run folders: converts records of `train` to pages of `report`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

from elman.errors import RunError
from elman.escaping import printable
from elman.report import Level, Pairs, RunPage, Scale, write_report
from elman.train.loop.config import Config
from elman.train.loop.display import clock
from elman.train.loop.metrics import COLUMNS
from elman.train.run.outcome import describe_baseline, describe_speed
from elman.train.run.record import Comparison, Record, Skipped, Summary, summarise

TILES = 4
ENGINE_HEADERS = ("layer", "sizes", "engine", "schedule", "instruction set")


def report_run(record: Record) -> Path:
    """Write report.html into a run folder, whether the run is complete or not. Raises RunError:
    there is no configuration to tell what ran, or the disk takes no page."""
    if record.config is None:
        raise RunError(
            "there is nothing to report", path=record.folder.path, found=describe_damage(record)
        )
    return write_report(record.folder.report, page_of(record, record.config))


def page_of(record: Record, config: Config) -> RunPage:
    """Collect the contents of a run's report; damaged files are named, and the rest is shown."""
    summary, facts, result = summarise(record, config), record.facts, record.result
    speed = result.speed if result else Skipped("there is no result yet")
    baseline, labels = summary.baseline, summary.labels
    measure = labels.score
    columns = {name: [getattr(row, name) for row in record.rows] for name in COLUMNS}
    settings, defaults = divide_settings(config)
    content = {k: v for k, v in facts.content.items() if k != "machine"} if facts else {}
    tables = {
        "Held-out data": result.table if result else {},
        "Settings": settings,
        "Data": content,
        "Machine": facts.machine if facts else {},
    }
    engines = engine_rows(result.choices) if result else ()
    return RunPage(
        name=title(summary, config),
        headlines=headlines(summary, speed, record),
        notes=(
            f"run {summary.name}, engine {summary.engine}",
            describe_speed(speed, config.cell, summary.labels),
            *([describe_damage(record)] if record.damages else ()),
        ),
        curves=columns,
        baseline=baseline and Level(baseline.name, baseline.loss, baseline.score),
        items=labels.items,
        loss=Scale("Loss", labels.loss, labels.form),
        score=Scale(measure.title.capitalize(), measure.axis, measure.form, measure.limits),
        speeds=asdict(speed.items_per_s) if isinstance(speed, Comparison) else {},
        sample=result.sample if result else "",
        tables={name: format_table(table) for name, table in tables.items()},
        folded={"Settings": format_table(defaults)},
        engine_headers=ENGINE_HEADERS,
        engines=engines,
        next_steps=next_steps(record, config),
        shown=tuple(Pairs(*astuple(pairs)) for pairs in result.shown) if result else (),
    )


def describe_damage(record: Record) -> str:
    """Describe the damages of a run's files on one line."""
    return "damaged: " + "; ".join(f"{name}: {reason}" for name, reason in record.damages.items())


def title(summary: Summary, config: Config) -> str:
    """Model, data and result in a line: ``gru 2 x 256 on words.txt: 1.958 bits per character``."""
    data = Path(config.data).name if config.data else "Python's own sources"
    about = printable(f"{summary.model} on {data}", "")
    labels = summary.labels
    if labels.headline == "score" and summary.valid_score is not None:
        return f"{about}: {labels.score.text(summary.valid_score)}"
    if summary.valid_loss is None:
        return f"{about}: not validated yet"
    return f"{about}: {labels.with_unit(summary.valid_loss)}"


def headlines(
    summary: Summary, speed: Skipped | Comparison, record: Record
) -> tuple[tuple[str, str], ...]:
    """Write four numbers and what they are: loss, score, speed, time."""
    labels, tiles = summary.labels, []
    comparison = f"; {describe_baseline(summary.baseline, labels)}" if summary.baseline else ""
    loss = score = None
    if summary.valid_loss is not None:
        loss = (f"{summary.valid_loss:{labels.form}}", f"{labels.loss} in validation")
    if summary.valid_score is not None:
        number = format(summary.valid_score, labels.score.form)
        score = (number, f"{labels.score.title} in validation")
    first, second = (loss, score) if labels.headline == "loss" else (score, loss)
    if first is not None:
        step = f"; weights of step {summary.best_step}" if summary.best_step is not None else ""
        tiles.append((first[0], f"{first[1]}{comparison}{step}"))
    if second is not None:
        tiles.append(second)
    if isinstance(speed, Comparison):
        busy = "; measured on a busy machine" if summary.busy else ""
        tiles.append((f"{speed.ratio:.2f}x", f"times as fast as torch.nn's layer{busy}"))
    if summary.items_per_s is not None:
        text = f"{labels.items}/s in training, with data, clipping and update; "
        text += f"step {summary.step} of {summary.steps}"
        tiles.append((f"{summary.items_per_s:,.0f}", text))
    seconds = record.rows[-1].train_seconds if record.rows else None
    if seconds is not None and len(tiles) < TILES:
        tiles.append((clock(seconds), "of training steps"))
    return tuple(tiles[:TILES])


def divide_settings(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide the settings of a run: those that differ from their defaults, and the others."""
    usual = {entry.name: entry.default for entry in fields(config)}
    settings = config.to_json()
    changed = {k: v for k, v in settings.items() if k not in usual or v != usual[k]}
    return changed, {k: v for k, v in settings.items() if k not in changed}


def format_table(table: Mapping[str, Any]) -> dict[str, str]:
    """Format the names and values of a table."""
    return {name.replace("_", " "): format_cell(value) for name, value in table.items()}


def format_cell(value: Any) -> str:
    """Format a value: four digits, thousands apart, no brackets."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        parts = {k: v for k, v in value.items() if v is not None}
        return ", ".join(f"{str(k).replace('_', ' ')} {format_cell(v)}" for k, v in parts.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(format_cell, value))
    return printable(str(value))


def engine_rows(choices: Any, *path: str) -> tuple[tuple[str, ...], ...]:
    """A row per layer and size bucket of a record of choices, however deep."""
    if isinstance(choices, list):
        return tuple(row for part in choices for row in engine_rows(part, *path))
    if not isinstance(choices, Mapping):
        return ()
    if isinstance(choices.get("engine"), str):
        facts = (format_cell(choices.get(name) or "") for name in ("engine", "schedule", "isa"))
        layer, *bucket = map(printable, path or ("",))
        return ((layer, ", ".join(bucket), *facts),)
    return tuple(
        row for name, part in choices.items() for row in engine_rows(part, *path, str(name))
    )


def next_steps(record: Record, config: Config) -> tuple[str, ...]:
    """Suggested next commands."""
    folder = record.folder.path
    if record.result is None:
        return (f"elman resume {folder}",)
    sample = (f"elman sample {folder}",) if config.TASK == "text" else ()
    return (
        *sample,
        f"elman runs {folder.parent}/*",
        f"elman export {folder} --c exported",
        f'python -c "import elman; model = elman.load({str(folder)!r})"',
    )
