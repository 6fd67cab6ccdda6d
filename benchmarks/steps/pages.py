"""Rows of steps as lines of a terminal and as a page."""

from __future__ import annotations

from typing import Any

from benchmarks.rows import Row
from benchmarks.table import machine_line

WIDTH = 150  # of why a step was refused, in a table


def worst(row: Row, dtype: str) -> tuple[str, float] | None:
    """The value that is farthest off in either mode, and how far; none if nothing was compared."""
    found = [
        (name, value)
        for mode in ("train", "eval")
        for name, value in row.get(mode, {}).get(dtype, {}).items()
    ]
    return max(found, key=lambda pair: pair[1], default=None)


def why(row: Row) -> str:
    """Why elman does not run a step, or not in every mode and dtype; "" if it does."""
    for word in ("absent", "failed"):
        if word in row:
            return f"{word}: {row[word]}"
    refused = {
        f"{mode}, {dtype}": text
        for mode in ("train", "eval")
        for dtype, text in row.get(mode, {}).get("refused", {}).items()
    }
    if len(refused) == 4 and len(set(refused.values())) == 1:
        return f"refused: {refused['train, float32']}"
    by_text: dict[str, list[str]] = {}
    for place, text in refused.items():
        by_text.setdefault(text, []).append(place)
    return "; ".join(f"refused in {' and '.join(ps)}: {text}" for text, ps in by_text.items())


def speedup(times: dict[str, Any] | None) -> str:
    """A speed-up with its quartiles."""
    if times is None:
        return ""
    if "failed" in times:
        return "failed"
    low, middle, high = times["speedup"]
    return f"{middle:.3g} ({low:.3g}–{high:.3g})"


def off(row: Row, dtype: str) -> str:
    """The largest error of a row, with its name."""
    found = worst(row, dtype)
    return "" if found is None else f"{found[1]:.1e} {found[0]}"


def line(row: Row) -> str:
    """A row for a terminal."""
    begin = f"{row['case']:36}"
    reason = why(row)
    if reason and "times" not in row:
        return f"{begin}{reason[:WIDTH]}"
    times = "  ".join(f"{size} {speedup(t)}" for size, t in row.get("times", {}).items())
    note = f"  but {reason[:WIDTH]}" if reason else ""
    return f"{begin}{times}  f64 {off(row, 'float64')}  f32 {off(row, 'float32')}{note}"


def page(rows: dict[str, Row], reported: dict[str, Row] | None = None) -> str:
    """A page about rows: what elman runs, what it refuses, and public reports if there are any."""
    run = [row for row in rows.values() if "times" in row]
    others = [row for row in rows.values() if "times" not in row]
    sizes = list(dict.fromkeys(size for row in run for size in row["times"]))
    lines = ["# Steps of packages and of public code", "", setting(run), ""]
    lines += table(
        ["step", "source", "engine", *sizes, "off, float64", "off, float32", "but"],
        [
            [
                row["case"],
                f"{row['source']} ({row['version']})",
                row["engine"],
                *(speedup(row["times"].get(size)) for size in sizes),
                off(row, "float64"),
                off(row, "float32"),
                why(row)[:WIDTH],
            ]
            for row in run
        ],
    )
    if others:
        lines += ["", "## Not run", ""]
        lines += table(
            ["step", "source", "why", "expected"],
            [[r["case"], r["source"], why(r)[:WIDTH], r.get("expected", "")] for r in others],
        )
    if reported:
        lines += ["", *reports(reported)]
    return "\n".join(lines) + "\n"


MODES = {"train": "training, ms", "forward": "forward, ms"}
FIRST = "first call, s"
OURS = ("elman.scan", "backend elman")


def reports(rows: dict[str, Row]) -> list[str]:
    """A section about the rows of ``benchmarks.steps.reports``."""
    run = [row for row in rows.values() if "contestants" in row]
    titles = list(dict.fromkeys(title for row in run for title in row["contestants"]))
    notes: list[str] = []
    body = []
    for row in run:
        told = {title: outcome(row, title, notes) for title in titles}
        size = "×".join(str(row[name]) for name in "TBH")
        begin = [row["case"], f"{row['source']}: {row['says']}".removesuffix(": ")]
        begin.append(f"{size}, {row['dtype']}")
        for what in [MODES[mode] for mode in MODES if mode in modes(row)] + [FIRST]:
            body.append([*begin, what, *(told[title].get(what, "") for title in titles)])
            begin = ["", "", ""]
    machines = dict.fromkeys(f"{machine_line(row)}; JAX {row['jax'] or 'absent'}" for row in run)
    loads = [row["machine"]["load"] for row in run]
    return [
        "## Public reports",
        "",
        "What users of torch's and of JAX's scan reported, and common cells, by every way to run "
        "them on this processor: medians of milliseconds of a call, in laps that take turns and "
        "repeat calls of less than 20 ms; seconds of the first call of a training step. A "
        "contestant is first compared with a loop in float64: outputs, last carries, gradients of "
        "weights and inputs. `inductor` is torch.compile, of the loop or of a program with torch's "
        'scan; `backend elman` is `torch.compile(f, backend="elman")` of '
        f"the latter. Measured on: {'; '.join(machines)}; load average before a row "
        f"{min(loads)} to {max(loads)}.",
        "",
        *table(["step", "reported", "T×B×H", "", *titles], body),
        "",
        behind(run),
        "",
        *notes,
    ]


def behind(run: list[Row]) -> str:
    """Where another contestant is ahead of both of ours, in a sentence."""
    ahead: dict[str, list[str]] = {}
    for row in run:
        for mode in modes(row):
            times = {
                title: of["ms"][mode][1]
                for title, of in row["contestants"].items()
                if mode in of.get("ms", {})
            }
            ours = [times.pop(title) for title in OURS if title in times]
            for title, ms in times.items():
                if ours and ms < min(ours):
                    words = f"{row['case']} ({mode}, {min(ours) / ms:.1f}x)"
                    ahead.setdefault(title, []).append(words)
    texts = [f"{title} is ahead of both in {', '.join(cases)}" for title, cases in ahead.items()]
    return f"{'; '.join(texts)}: a call of elman's is Python around the kernel." if texts else ""


def modes(row: Row) -> list[str]:
    """What was measured of a report."""
    return [m for m in MODES if any(m in c.get("ms", {}) for c in row["contestants"].values())]


def outcome(row: Row, title: str, notes: list[str]) -> dict[str, str]:
    """The cells of a contestant, by what they tell; why it was not measured goes to the notes."""
    of = row["contestants"].get(title, {})
    for word in ("refused", "wrong"):
        if word in of:
            told = word if word == "refused" else of[word].partition(": ")[0]
            notes.append(f"{len(notes) + 1}. {row['case']}, {title}: `{of[word][:WIDTH]}`")
            return {MODES[modes(row)[0]]: f"{told} ({len(notes)})"}
    cells = {MODES[mode]: f"{times[1]:.3g}" for mode, times in of.get("ms", {}).items()}
    return cells | {FIRST: f"{next(iter(of['first_s'].values())):.3g}"} if cells else {}


def setting(run: list[Row]) -> str:
    """How rows were measured, in a sentence."""
    if not run:
        return "Nothing was run."
    machines = dict.fromkeys(f"{machine_line(row)}; {row['mode']}()" for row in run)
    return (
        "Training steps (forward and backward, float32) over those of a Python loop: medians and "
        "quartiles. Sizes are T×B×H, or the source's own. Errors are the largest, relative to the "
        "largest value, of outputs, last states and all gradients, in train() and eval(). "
        f"Measured on: {'; '.join(machines)}."
    )


def table(head: list[str], body: list[list[str]]) -> list[str]:
    """Lines of a table."""
    rows = [head, ["---"] * len(head), *body]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
