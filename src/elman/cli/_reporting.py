"""From a run folder to its report: what the room `train` knows, told to the room `report`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from elman.report import Level, RunPage, write_report
from elman.train.folder import RunFolder
from elman.train.metrics import COLUMNS, read_metrics
from elman.train.outcome import in_words, speed_in_words
from elman.train.summary import Summary, summarise


def report_run(folder: RunFolder) -> Path:
    """Write report.html into a run folder, whether the run is complete or not.

    Raises:
        RunError: if the folder's files are damaged or the disk takes no page.
    """
    return write_report(folder.report, page_of(folder))


def page_of(folder: RunFolder) -> RunPage:
    """Collect what the report of a run tells."""
    summary, facts, result = summarise(folder), folder.read("facts"), folder.read("result")
    speed = result.get("speed", {"skipped": "the run is not complete"})
    rows = read_metrics(folder.metrics)
    baseline = summary.baseline
    return RunPage(
        name=summary.name,
        headlines=headlines(summary),
        notes=(
            f"{summary.model}, engine {summary.engine}",
            speed_in_words(speed, summary.config.cell, summary.words),
        ),
        curves={name: [getattr(row, name) for row in rows] for name in COLUMNS},
        baseline=None if baseline is None else Level(**asdict(baseline)),
        items=summary.words.items,
        loss=summary.words.loss,
        speeds=speed.get("items_per_s", {}),
        sample=result.get("sample", ""),
        tables={
            **({"Held-out data": result["table"]} if "table" in result else {}),
            "Configuration": summary.config.to_json(),
            "Data": {name: value for name, value in facts.items() if name != "machine"},
            "Machine": facts.get("machine", {}),
        },
        choices=result.get("choices", {}),
    )


def headlines(summary: Summary) -> tuple[tuple[str, str], ...]:
    """Write the most important numbers and what they are."""
    words, found = summary.words, []
    beside = f"; {in_words(summary.baseline, words)}" if summary.baseline else ""
    if summary.valid_loss is not None and words.headline == "loss":
        found.append((f"{summary.valid_loss:.3f}", f"{words.loss} in validation{beside}"))
    elif summary.valid_accuracy is not None:
        found.append((f"{summary.valid_accuracy:.1%}", f"right in validation{beside}"))
    if summary.items_per_s is not None:
        text = f"{words.items}/s in training; step {summary.step} of {summary.steps}"
        found.append((f"{summary.items_per_s:,.0f}", text))
    return tuple(found)
