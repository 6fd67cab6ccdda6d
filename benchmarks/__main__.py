"""The command ``python -m benchmarks``: elman against its peers, side by side."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.cases import OURS, Case, Effort, Suite
from benchmarks.claims import FAILS, Rows, judged
from benchmarks.claims import HEADERS as CLAIM_HEADERS
from benchmarks.report import BenchPage, Plot, write_benchmark, write_benchmarks
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
from elman.errors import RunError, diagnostic

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
        own = path / f"{chosen.name}.jsonl" if suite == ALL else path
        if measuring:
            effort = Effort.of(quick, seconds, chosen.seconds, chosen.rounds)
            cases = chosen.select(tuple(rows or ()), quick)
            found = measure(console, chosen, cases, effort, own)
        else:
            found = present(chosen, tuple(rows or ()), quick, own)
        tell(console, chosen, found)
        say(console, f"rows: {own}")
        pages.append(page_of(chosen, found))
        failed |= any("failed" in row for row in found)
    if suite == ALL:
        page = write_benchmarks(path / "report.html", "elman: every suite", pages)
    else:
        page = write_benchmark(path.with_suffix(".html"), pages[0])
    say(console, f"page: {page}")
    if failed and measuring:
        raise typer.Exit(FAILED)


def present(suite: Suite, names: tuple[str, ...], quick: bool, path: Path) -> list[Row]:
    """The rows that a file has of a suite, whatever code measured them, in the suite's order.

    Raises:
        RunError: it cannot be read, or a row is not what is measured of its case.
    """
    rows = read_rows(path)
    found = [rows[case.name] for case in suite.select(names, quick) if case.name in rows]
    for row in found:
        check_row(suite, row, path)
    return found


def check_row(suite: Suite, row: Row, path: Path) -> None:
    """Refuse a row that cannot be shown. Suites measure each their own: what shows it is asked.

    Raises:
        RunError: a field is missing, or of another kind.
    """
    try:
        table_of(suite, [row])
        for ratio in page_of(suite, [row]).ratios.values():
            if not 0 < ratio["q1"] <= ratio["median"] <= ratio["q3"] < math.inf:
                raise ValueError("the quartiles of a ratio are not in their order")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        details = [("path", str(path)), ("row", row["case"]), ("found", f"{error!r}")]
        text = "a row of the file is not what python -m benchmarks writes"
        raise RunError(diagnostic(text, details, "measure it again")) from error


def tell(console: Console, chosen: Suite, found: list[Row]) -> None:
    """Print a suite's tables."""
    console.print(table_of(chosen, found))
    if chosen.claims:
        console.print(claims_of(chosen, found))
    for line in (*machines_of(found), *warnings_of(found)):
        say(console, line)


def machines_of(found: list[Row]) -> list[str]:
    """A line for each machine that rows were measured on."""
    lines = [machine_line(row) for row in found if "cpu" in row.get("machine", {})]
    return list(dict.fromkeys(lines))


def measure(
    console: Console, suite: Suite, cases: tuple[Case, ...], effort: Effort, path: Path
) -> list[Row]:
    """Run the cases and tell each as it is done."""
    found: list[Row] = []
    with console.status("measuring"):
        for case, row, measured in run_suite(suite, cases, effort, path):
            found.append(row)
            text = summary(row) if measured else "in the file already"
            say(console, f"[{len(found)}/{len(cases)}] {case.name}: {text}")
    return found


def summary(row: Row) -> str:
    """A row in a few words."""
    texts = [f"{COLUMNS[name][1]} {text}" for name, text in words(row).items() if name != CASE]
    return row["failed"] if "failed" in row else ", ".join(texts)


def table_of(suite: Suite, found: list[Row]) -> Table:
    """Lay rows out; what was asked for and not reached is red."""
    table = Table(title=plain(suite.question), title_justify="left")
    headers, texts = filled(found)
    for header in headers:
        table.add_column(header, justify="left" if header == COLUMNS[CASE][0] else "right")
    for row, line in zip(found, texts, strict=True):
        missed = "failed" in row or row.get("met") is False
        table.add_row(*map(plain, line), style="red" if missed else None)
    return table


def claims_of(suite: Suite, found: list[Row]) -> Table:
    """What the source of a suite says beside what was measured; what does not hold is red."""
    table = Table(*CLAIM_HEADERS, title=plain(suite.source), title_justify="left")
    for line in judged(suite.claims, Rows(found)):
        table.add_row(*map(plain, line), style="red" if line[4] == FAILS else None)
    return table


def page_of(suite: Suite, found: list[Row]) -> BenchPage:
    """What the report shows of a suite's rows."""
    headers, lines = filled(found)
    steps = [row for row in found if OURS in row.get("ratio", {})]
    large = [row for row in steps if row["asked"]["H"] >= LARGE]
    shares = {row["case"]: share_of_peak(row) for row in large}
    missing = {
        row["case"]: row[key] for row in found for key in ("failed", "skipped") if key in row
    }
    absent = {
        f"{row['case']}: {name}": reason
        for row in found
        for name, reason in row.get("absent", {}).items()
    }
    plots = [*suite.plots(Rows(found)), *(p for row in found for p in row.get("plots", ()))]
    return BenchPage(
        f"benchmarks {suite.name}",
        suite.question,
        [*machines_of(found), *warnings_of(found)],
        headers,
        lines,
        {row["case"]: row["ratio"][OURS] for row in steps},
        {
            row["case"]: row["asked"]["ratio"]
            for row in steps
            if row["asked"]["ratio"] and not busy_in_words(row)
        },
        {name: share[1] for name, share in shares.items() if share and share[1]},
        [Plot(**plot) for plot in plots],
        absent | missing,
        suite.source,
        CLAIM_HEADERS,
        judged(suite.claims, Rows(found)),
    )


if __name__ == "__main__":
    run_command(bench, "python -m benchmarks")
