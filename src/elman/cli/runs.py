"""List or compare runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from elman.cli._reporting import describe_damage, report_run
from elman.cli._terminal import full_width, plain, wide_console
from elman.errors import RunError
from elman.train.run.folder import RunFolder, list_runs, open_run
from elman.train.run.record import Record, Summary, differences, read_record, summarise

EXAMPLES = ("elman runs", "elman runs runs/first runs/second", "elman runs --report")


def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Runs to compare; all by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder that contains the run folders.")] = Path("runs"),
    report: Annotated[bool, typer.Option("--report", help="Rewrite each report.html.")] = False,
) -> None:
    """List or compare runs.

    For several named runs, a second table lists the options in which they differ.
    """
    console = wide_console(200)
    records = [read_record(folder) for folder in open_runs(folders, out)]
    if not records:
        console.print(plain(f"no runs in {out}; elman train makes one"))
        return
    summaries = [summarise(record, record.config) for record in records if record.config]
    if summaries:
        console.print(fit_table(console, summaries))
    for summary in summaries:
        if summary.busy:
            console.print(plain(f"{summary.name}: {summary.busy}"), soft_wrap=True)
    if folders and len(summaries) > 1:
        console.print(table_of_differences(summaries))
    for record in records:
        if record.damages:
            console.print(plain(f"{record.name}: {describe_damage(record)}"), soft_wrap=True)
    for record in records if report else ():
        if record.config is not None:
            console.print(plain(write_run_report(record)), soft_wrap=True)


def open_runs(folders: list[Path] | None, out: Path) -> list[RunFolder]:
    """Return the run folders that are named, or else all below one."""
    return [open_run(path) for path in folders] if folders else list_runs(out)


def write_run_report(record: Record) -> str:
    """Write a run's report, and say where it is or why there is none."""
    try:
        return f"report: {report_run(record)}"
    except RunError as error:
        return f"{record.name}: {' '.join(str(error).split())}"


def fit_table(console: Console, summaries: list[Summary]) -> Table:
    """The table with as many columns as the console has room for."""
    columns = list(COLUMNS)
    table = table_of(summaries, columns)
    for name in DROPPED_FIRST:
        if full_width(console, table) <= console.width:
            break
        columns.remove(name)
        table = table_of(summaries, columns)
    return table


def table_of(summaries: list[Summary], columns: Sequence[str]) -> Table:
    """Lay summaries out, one run per row."""
    table = Table(*columns)
    for summary in summaries:
        table.add_row(*(COLUMNS[name](summary) for name in columns))
    return table


def speed_of(summary: Summary) -> Text:
    """Speed-up of a run over torch.nn."""
    text = "-" if summary.ratio is None else f"{summary.ratio:.1f}x"
    return plain(text + " (busy)" * bool(summary.busy))


COLUMNS: dict[str, Callable[[Summary], Text]] = {
    "run": lambda summary: plain(summary.name),
    "model": lambda summary: plain(summary.model),
    "steps": lambda summary: plain(f"{summary.step}/{summary.steps}"),
    "loss": lambda summary: plain(
        f"{number(summary.valid_loss, summary.labels.form)} {summary.labels.brief}"
    ),
    "score": lambda summary: plain(score_of(summary, summary.valid_score)),
    "baseline": lambda summary: plain(baseline_of(summary)),
    "speed": lambda summary: plain(
        f"{number(summary.items_per_s, ',.0f')} {summary.labels.items}/s"
    ),
    "vs torch.nn": speed_of,
    "engine": lambda summary: plain(summary.engine),
}
DROPPED_FIRST = ("baseline", "score", "engine", "steps", "speed", "model")


def baseline_of(summary: Summary) -> str:
    """Format the baseline of a run."""
    if summary.baseline is None:
        return "-"
    labels = summary.labels
    if labels.headline == "score":
        return score_of(summary, summary.baseline.score)
    return number(summary.baseline.loss, labels.form)


def score_of(summary: Summary, value: float | None) -> str:
    """Write a score of a run, with its name."""
    return "-" if value is None else summary.labels.score.text(value)


def table_of_differences(summaries: list[Summary]) -> Table:
    """Lay out the configuration fields in which runs differ, one field per row."""
    table = Table("differs in")
    for summary in summaries:
        table.add_column(plain(summary.name))
    for name, values in differences(summaries).items():
        table.add_row(name, *map(plain, values))
    return table


def number(value: float | None, form: str) -> str:
    """Write a number; a dash where there is none."""
    return "-" if value is None else format(value, form)
