"""From a run folder to its report: what the room `train` knows, told to the room `report`."""

from __future__ import annotations

from pathlib import Path

from elman.report import RunPage, write_report
from elman.train.folder import RunFolder
from elman.train.metrics import COLUMNS, read_metrics
from elman.train.outcome import speed_in_words
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
    trigram = summary.trigram_bpc
    return RunPage(
        name=summary.name,
        headlines=headlines(summary),
        notes=(
            f"{summary.model}, engine {summary.engine}",
            speed_in_words(speed, summary.config.cell),
        ),
        curves={name: [getattr(row, name) for row in rows] for name in COLUMNS},
        baseline=None if trigram is None else ("trigram", trigram),
        speeds=speed.get("chars_per_s", {}),
        sample=result.get("sample", ""),
        tables={
            "Configuration": summary.config.to_json(),
            "Text": {name: value for name, value in facts.items() if name != "machine"},
            "Machine": facts.get("machine", {}),
        },
        choices=result.get("choices", {}),
    )


def headlines(summary: Summary) -> tuple[tuple[str, str], ...]:
    """Write the most important numbers and what they are."""
    found = []
    if summary.valid_bpc is not None:
        words = "bits per character in validation"
        if summary.trigram_bpc is not None:
            words += f"; an interpolated trigram on the same text: {summary.trigram_bpc:.3f}"
        found.append((f"{summary.valid_bpc:.3f}", words))
    if summary.chars_per_s is not None:
        words = f"characters/s in training; step {summary.step} of {summary.steps}"
        found.append((f"{summary.chars_per_s:,.0f}", words))
    return tuple(found)
