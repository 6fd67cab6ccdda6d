"""The command ``python -m benchmarks``: elman against its peers, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.cases import OURS, Case, Effort, Suite
from benchmarks.claims import FAILS, HEADERS, VERDICT, Rows, judged
from benchmarks.report import BenchPage, write_report
from benchmarks.rows import Row, busy_in_words, read_rows
from benchmarks.running import run_suite
from benchmarks.suites import SUITES, find_suite
from benchmarks.table import (
    CASE,
    COLUMNS,
    LARGE,
    filled,
    machine_line,
    share_of_peak,
    warnings_of,
    words,
)
from elman.cli._terminal import plain, say, wide_console
from elman.cli.app import run_command

FAILED = 1
ALL = "all"


def bench(
    suite: Annotated[
        str, typer.Argument(help=f"A suite: {', '.join(SUITES)}; or {ALL}.")
    ] = "foundation",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases, under a minute.")] = False,
    seconds: Annotated[
        float | None, typer.Option(help="Seconds of timing per case, instead of the suite's own.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File of the rows (for all: a folder); cases that it has are not measured again."
        ),
    ] = None,
    rows: Annotated[
        list[str] | None, typer.Option(help="Only cases whose names match, such as 'gru*'.")
    ] = None,
    measuring: Annotated[
        bool, typer.Option("--measure/--report", help="Measure, or only show the rows in --out.")
    ] = True,
) -> None:
    """Measure elman against its peers, side by side.

    Each case runs in a process of its own; its row is in the file as soon as it is measured.
    `all` is every suite, with one page of all of them.
    """
    console = wide_console()
    if out is None and not measuring:
        raise typer.BadParameter("say where the rows are: --out", param_hint="--report")
    path = out or Path("bench-out") / f"{suite}-{datetime.now():%Y%m%d-%H%M%S}"
    if suite != ALL:
        path = out or path.with_suffix(".jsonl")
    pages, failed = [], False
    for chosen in SUITES.values() if suite == ALL else (find_suite(suite),):
        file = path / f"{chosen.name}.jsonl" if suite == ALL else path
        cases = chosen.select(tuple(rows or ()), quick)
        if measuring:
            effort = Effort.of(quick, seconds, chosen.seconds, chosen.rounds)
            measured = measure(console, chosen, cases, effort, file)
        else:
            rows_of_file = read_rows(file)
            measured = [rows_of_file[case.name] for case in cases if case.name in rows_of_file]
        page = page_of(chosen, measured)
        console.print(table_of(chosen, measured))
        if chosen.claims:
            console.print(claims_table(chosen, page.claims))
        for line in (*page.machines, f"rows: {file}"):
            say(console, line)
        pages.append(page)
        failed |= any("failed" in row for row in measured)
    if suite == ALL:
        page = write_report(path / "report.html", "elman: every suite", pages)
    else:
        page = write_report(path.with_suffix(".html"), pages[0].name, pages)
    say(console, f"page: {page}")
    if failed and measuring:
        raise typer.Exit(FAILED)


def measure(
    console: Console, suite: Suite, cases: tuple[Case, ...], effort: Effort, path: Path
) -> list[Row]:
    """Run the cases and tell each as it is done."""
    rows: list[Row] = []
    with console.status("measuring"):
        for case, row, fresh in run_suite(suite, cases, effort, path):
            rows.append(row)
            text = summary(row) if fresh else "in the file already"
            say(console, f"[{len(rows)}/{len(cases)}] {case.name}: {text}")
    return rows


def summary(row: Row) -> str:
    """A row in a few words."""
    texts = [f"{COLUMNS[name][1]} {text}" for name, text in words(row).items() if name != CASE]
    return row["failed"] if "failed" in row else ", ".join(texts)


def table_of(suite: Suite, rows: list[Row]) -> Table:
    """Lay rows out; what was asked for and not reached is red."""
    table = Table(title=plain(suite.question), title_justify="left")
    headers, texts = filled(rows)
    for header in headers:
        table.add_column(header, justify="left" if header == COLUMNS[CASE][0] else "right")
    for row, line in zip(rows, texts, strict=True):
        missed = "failed" in row or row.get("met") is False
        table.add_row(*map(plain, line), style="red" if missed else None)
    return table


def claims_table(suite: Suite, lines: Iterable[Sequence[str]]) -> Table:
    """What the source of a suite says beside what was measured; what does not hold is red."""
    table = Table(*HEADERS, title=plain(suite.source), title_justify="left")
    for line in lines:
        table.add_row(*map(plain, line), style="red" if line[VERDICT] == FAILS else None)
    return table


def page_of(suite: Suite, rows: list[Row]) -> BenchPage:
    """What the report shows of a suite's rows."""
    headers, lines = filled(rows)
    machines = [machine_line(row) for row in rows if "cpu" in row.get("machine", {})]
    steps = [row for row in rows if OURS in row.get("ratio", {})]
    shares = {row["case"]: share_of_peak(row) for row in steps if row["asked"]["H"] >= LARGE}
    absent = {
        f"{row['case']}: {name}": reason
        for row in rows
        for name, reason in row.get("absent", {}).items()
    }
    absent |= {row["case"]: row[key] for row in rows for key in ("failed", "skipped") if key in row}
    sweep = suite.sweep.plots(Rows(rows)) if suite.sweep else ()
    return BenchPage(
        f"benchmarks {suite.name}",
        suite.question,
        [*dict.fromkeys(machines), *warnings_of(rows)],
        headers,
        lines,
        {row["case"]: row["ratio"][OURS] for row in steps},
        {
            row["case"]: row["asked"]["ratio"]
            for row in steps
            if row["asked"]["ratio"] and not busy_in_words(row)
        },
        {name: share[1] for name, share in shares.items() if share and share[1]},
        [*sweep, *(plot for row in rows for plot in row.get("plots", ()))],
        absent,
        suite.source,
        judged(suite.claims, Rows(rows)),
    )


if __name__ == "__main__":
    run_command(bench, "python -m benchmarks")
