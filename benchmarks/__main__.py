"""The command ``python -m benchmarks``: elman against its peers, side by side."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.cases import OURS, Case, Effort, Suite
from benchmarks.claims import FAILS, HEADERS, HOLDS, VERDICT, Rows, judged
from benchmarks.pictures import times
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
    reached,
    share_of_peak,
    warnings_of,
    words,
)
from elman.cli._terminal import full_width, plain, say, wide_console
from elman.cli.app import run_command
from elman.train.loop.display import clock as duration

FAILED = 1
ALL = "all"
DROPPED_FIRST = (
    "error",
    "c",
    "speed",
    "refused",
    "first",
    "others",
    "phases",
    "memory",
    "baseline",
)


def bench(
    suite: Annotated[
        str, typer.Argument(help=f"A suite: {', '.join(SUITES)}; or {ALL}.")
    ] = "foundation",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases and shorter timing.")] = False,
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
    for benchmark in SUITES.values() if suite == ALL else (find_suite(suite),):
        file = path / f"{benchmark.name}.jsonl" if suite == ALL else path
        cases = benchmark.select(tuple(rows or ()), quick)
        if measuring:
            effort = Effort.of(quick, seconds, benchmark.seconds, benchmark.rounds)
            measured = measure(console, benchmark, cases, effort, file)
        else:
            rows_of_file = read_rows(file)
            measured = [rows_of_file[case.name] for case in cases if case.name in rows_of_file]
        page = page_of(benchmark, measured)
        pages.append(page)
        failed |= any("failed" in row for row in measured)
        if suite == ALL:
            say(console, line_of(benchmark, measured, page))
            continue
        console.print(fitting(console, benchmark, measured))
        if benchmark.claims:
            console.print(claims_table(benchmark, page.claims))
        for line in (*page.machines, f"rows: {file}"):
            say(console, line)
    if suite == ALL:
        page = write_report(path / "report.html", "elman: every suite", pages)
    else:
        title = ": ".join([pages[0].name, *(" ".join(tile[::-1]) for tile in pages[0].tiles[:1])])
        page = write_report(path.with_suffix(".html"), title, pages)
    say(console, f"page: {page}")
    if failed and measuring:
        raise typer.Exit(FAILED)


def measure(
    console: Console, suite: Suite, cases: tuple[Case, ...], effort: Effort, path: Path
) -> list[Row]:
    """Run the cases and tell each as it is done."""
    rows: list[Row] = []
    clock, began, fresh_rows = time.monotonic, time.monotonic(), 0
    names = [case.name for case in cases]
    with console.status(progress(names, 0, 0.0)) as status:
        for case, row, fresh in run_suite(suite, cases, effort, path):
            rows.append(row)
            fresh_rows += fresh
            text = summary(row) if fresh else "in the file already"
            say(console, f"[{len(rows)}/{len(cases)}] {case.name}: {text}")
            per_case = (clock() - began) / max(1, fresh_rows)
            status.update(progress(names, len(rows), per_case * (len(cases) - len(rows))))
    return rows


def progress(names: Sequence[str], completed: int, left_s: float) -> str:
    """Progress line: the current case, the number of cases and the time left."""
    if completed == len(names):
        return "writing the page"
    remaining = f", about {duration(left_s)} left" if left_s else ""
    return escape(f"measuring {names[completed]} ({completed + 1} of {len(names)}{remaining})")


def summary(row: Row) -> str:
    """A row in a few words."""
    texts = [f"{COLUMNS[name][1]} {text}" for name, text in words(row).items() if name != CASE]
    return row["failed"] if "failed" in row else ", ".join(texts)


def line_of(suite: Suite, rows: Sequence[Row], page: BenchPage) -> str:
    """A suite on one line: how many rows, targets missed, claims that hold."""
    missed = sum(reached(row) is False for row in rows)
    texts = [f"{len(rows)} of {len(suite.cases)} cases"]
    texts += [f"{missed} targets missed"] if missed else []
    if page.claims:
        holding = sum(line[VERDICT] == HOLDS for line in page.claims)
        texts.append(f"{holding} of {len(page.claims)} claims hold")
    return f"{suite.name}: {', '.join(texts)}"


def fitting(console: Console, suite: Suite, rows: list[Row]) -> Table:
    """The table with as many columns as the console has room for."""
    without: list[str] = []
    table = table_of(suite, rows)
    for name in DROPPED_FIRST:
        if full_width(console, table) <= console.width:
            break
        without.append(name)
        table = table_of(suite, rows, without)
    return table


def table_of(suite: Suite, rows: list[Row], without: Sequence[str] = ()) -> Table:
    """Lay rows out; what was asked for and not reached is red."""
    table = Table(title=plain(suite.question), title_justify="left")
    headers, texts = filled(rows, without)
    for header in headers:
        first = header == COLUMNS[CASE][0]
        table.add_column(header, justify="left" if first else "right", no_wrap=first)
    for row, line in zip(rows, texts, strict=True):
        missed = "failed" in row or reached(row) is False
        table.add_row(*map(plain, line), style="red" if missed else None)
    return table


def claims_table(suite: Suite, lines: Iterable[Sequence[str]]) -> Table:
    """Table of a suite's claims beside what was measured; what does not hold is red."""
    table = Table(*HEADERS, title=plain(suite.source), title_justify="left")
    for line in lines:
        table.add_row(*map(plain, line), style="red" if line[VERDICT] == FAILS else None)
    return table


def page_of(suite: Suite, rows: list[Row]) -> BenchPage:
    """Page of a suite's rows."""
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
        claims := judged(suite.claims, Rows(rows)),
        tiles_of(steps, rows, claims),
    )


def tiles_of(
    steps: Sequence[Row], rows: Sequence[Row], claims: Sequence[Sequence[str]]
) -> list[tuple[str, str]]:
    """Numbers of a suite: speed-ups, targets, claims."""
    tiles = [(str(len(rows)), "cases")]
    if steps:
        medians = sorted(row["ratio"][OURS]["median"] for row in steps)
        tiles.insert(0, (times(medians[len(medians) // 2]), "median speed-up over the baselines"))
        tiles.insert(1, (f"{times(medians[0])} to {times(medians[-1])}", "least and greatest"))
    verdicts = [verdict for row in rows if (verdict := reached(row)) is not None]
    if verdicts:
        missed = verdicts.count(False)
        text = f"targets met{f', {missed} missed' if missed else ''}"
        tiles.append((f"{verdicts.count(True)} of {len(verdicts)}", text))
    if claims:
        holding = sum(line[VERDICT] == HOLDS for line in claims)
        tiles.append((f"{holding} of {len(claims)}", "claims of the source hold"))
    return tiles


if __name__ == "__main__":
    run_command(bench, "python -m benchmarks")
