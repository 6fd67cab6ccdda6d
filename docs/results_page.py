"""What results.md shows of the committed rows: a plot for each suite, its tables folded."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path

from benchmarks.cases import OURS, Suite
from benchmarks.claims import FAILS, HEADERS, HOLDS, UNDECIDED, UNTRIED, VERDICT, Rows, judged
from benchmarks.pictures import times
from benchmarks.rows import Row, read_rows
from benchmarks.suites import SUITES
from benchmarks.table import filled, machine_line, reached

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
FIRST = ("foundation", "cpu", "users", "cells", "layers")  # what a newcomer asks for
SIZES = re.compile(r"\b(\d+),(\d+),(\d+)")
FIGURE = 11  # characters of a cell that are not broken into lines


def measured() -> str:
    """Every suite, those of layers and projects first."""
    names = [*FIRST, *(name for name in SUITES if name not in FIRST)]
    return "\n".join(part for name in names for part in _section(SUITES[name]))


def targets() -> str:
    """How many targets of all suites are met, and the cases that miss theirs."""
    rows = [
        (suite.name, row)
        for suite in SUITES.values()
        for row in _present(suite).values()
        if row["asked"]["ratio"] is not None or row["asked"]["seconds"] is not None
    ]
    met = sum(reached(row) is True for _, row in rows)
    missed = [f"{row['case']} ({name})" for name, row in rows if reached(row) is False]
    undecided = [f"{row['case']} ({name})" for name, row in rows if reached(row) is None]
    text = f"{met} of {len(rows)} targets are met. Missed: {', '.join(missed) or 'none'}."
    return f"{text} {UNDECIDED.capitalize()}: {', '.join(undecided)}." if undecided else text


def _present(suite: Suite) -> dict[str, Row]:
    rows = read_rows(RESULTS / f"{suite.name}.jsonl")
    return {case.name: rows[case.name] for case in suite.cases if case.name in rows}


def _section(suite: Suite) -> Iterator[str]:
    """A suite: its question, its plot, its table and claims, the machine."""
    rows = _present(suite)
    missing = [case.name for case in suite.cases if case.name not in rows]
    yield f"### {suite.name}\n"
    yield f"{suite.question}\n"
    if not rows:
        yield "Not measured: no rows are committed.\n"
        return
    yield from bars(suite, rows.values())
    if suite.claims:
        lines = judged(suite.claims, Rows(rows.values()))
        counts = Counter(line[VERDICT] for line in lines)
        tally = f"{counts[HOLDS]} hold, {counts[FAILS]} do not"
        tally += "".join(
            f", {counts[word]} {word}" for word in (UNDECIDED, UNTRIED) if counts[word]
        )
        table = [f"Source: {suite.source}.\n", *grid(HEADERS, lines)]
        yield from folded(f"Claims of the source: {tally}", table)
    headers, lines = filled([row for row in rows.values() if "peak_gflops" not in row])
    further = [f"Not measured: {', '.join(missing)}.\n"] if missing else []
    machines = [f"{line}.\n" for line in dict.fromkeys(map(machine_line, rows.values()))]
    command = f"Measured by `python -m benchmarks {suite.name}`.\n"
    yield from folded(
        f"Table of {len(lines)} cases", [command, *grid(headers, lines), *further, *machines]
    )


def bars(suite: Suite, rows: Iterable[Row]) -> Iterator[str]:
    """A bar for each case that is compared with a baseline, logarithmic from 1 on."""
    shown = [row for row in rows if OURS in row.get("ratio", {})]
    if not shown:
        return
    medians = [row["ratio"][OURS]["median"] for row in shown]
    longest = math.log(max(*medians, 2.0))
    yield '```{raw} html\n<div class="bars" role="img"'
    yield f'aria-label="Speed-ups of suite {suite.name}; the table has the same figures">'
    for row, median in zip(shown, medians, strict=True):
        width = max(0.0, 100 * math.log(median) / longest)
        note = _note(row)
        slower = " slower" if median < 1 else ""
        yield (
            f'<span>{escape(_label(row["case"]))}</span><span class="track{slower}">'
            f'<i style="width: {width:.1f}%"></i><em>{times(median)}</em>{note}</span>'
        )
    yield "</div>\n```\n"
    baselines = {row["asked"]["baseline"] or "torch" for row in shown}
    yield f"*Speed-up of a step over {_named(baselines)}; logarithmic bars.*\n"


BASELINES = {
    "torch": "torch's own implementation",
    "loop": "a Python loop in torch",
    "tuned-loop": "a tuned Python loop in torch",
    "elman-c": "engine c",
    "serial": "serial code",
}


def _note(row: Row) -> str:
    """What a bar lacks of its target: the quartile that decides stands there."""
    target, met = row["asked"]["ratio"], reached(row)
    if not target or met:
        return ""
    ratio = row["ratio"][OURS]
    if met is False:
        return f' <b class="missed">target {target:g}x missed</b>'
    quartiles = f"{times(ratio['q1'])} to {times(ratio['q3'])} in half of the rounds"
    return f" <small>target {target:g}x {UNDECIDED}: {quartiles}</small>"


def _named(baselines: Iterable[str]) -> str:
    return " or ".join(sorted(BASELINES.get(name, f"`{name}`") for name in baselines))


def _label(case: str) -> str:
    """A case's name with its sizes spelled out."""
    return SIZES.sub(r"T = \1, B = \2, H = \3", case)


def folded(title: str, content: Iterable[str]) -> Iterator[str]:
    """Markdown that a click unfolds."""
    yield f"<details><summary>{escape(title)}</summary>\n"
    yield from content
    yield "</details>\n"


def grid(headers: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table, in which a bar stands for itself and figures stay on one line."""
    yield f"| {' | '.join(headers)} |"
    yield "|---" * len(headers) + "|"
    for line in lines:
        yield f"| {' | '.join(map(_figure, line))} |"
    yield ""


def _figure(text: str) -> str:
    kind = "figure missed" if text.endswith("missed") else "figure"
    text = text.replace("|", "\\|")
    return f'<span class="{kind}">{text}</span>' if len(text) <= FIGURE else text
