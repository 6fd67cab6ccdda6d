"""Tables and figures of committed rows, written into pages between marker comments."""

from __future__ import annotations

import re

from benchmarks.cases import Suite
from benchmarks.rows import Row, busy_in_words
from benchmarks.table import filled, machine_line
from elman.errors import InputError, RunError, diagnostic

END = "<!-- /bench -->"


def start_of(name: str) -> str:
    """The comment that something stands behind: a suite's table, or a figure."""
    return f"<!-- bench:{name} -->"


def names_in(text: str) -> list[str]:
    """Names of the markers in a text, in order."""
    return re.findall(r"<!-- bench:(.+?) -->", text)


def _places(name: str) -> re.Pattern[str]:
    """Every place of a suite's table or of a figure in a text, markers included."""
    return re.compile(f"({re.escape(start_of(name))})(\n?)(.*?)(\n?)({re.escape(END)})", re.DOTALL)


def contents(text: str, name: str) -> list[str]:
    """The text between the markers, at each place."""
    return [place[3] for place in _places(name).finditer(text)]


def rewritten(text: str, name: str, content: str) -> str:
    """The text with other content between the markers, on lines of its own if it was before.

    Raises:
        InputError: there are no markers.
    """
    text, count = _places(name).subn(
        lambda place: "".join((*place.group(1, 2), content, *place.group(4, 5))), text
    )
    if not count:
        raise InputError(
            diagnostic("no place for the table", [("need", f"{start_of(name)} … {END}")])
        )
    return text


def markdown(suite: Suite, measured: dict[str, Row]) -> str:
    """A Markdown table of a suite's cases, and below it the machine with its peak.

    Raises:
        RunError: a case is missing, failed, or was measured elsewhere or in a hurry.
    """
    present = [measured[case.name] for case in suite.cases if case.name in measured]
    reasons = complaints(suite, measured)
    if reasons:
        raise RunError(
            diagnostic("these rows make no table", [("row", reason) for reason in reasons])
        )
    headers, texts = filled([row for row in present if "peak_gflops" not in row])
    lines = [f"| {' | '.join(headers)} |", "|---" + "|---:" * (len(headers) - 1) + "|"]
    lines += [f"| {' | '.join(line)} |" for line in texts]
    return "\n".join([*lines, "", f"{machine_line(present[-1])}."])


def complaints(suite: Suite, measured: dict[str, Row]) -> list[str]:
    """Reasons not to publish rows: every case must be there, by one code on one machine."""
    reasons = [f"{case.name}: missing" for case in suite.cases if case.name not in measured]
    present = [measured[case.name] for case in suite.cases if case.name in measured]
    reasons += [
        f"{row['case']}: {row[key]}"
        for row in present
        for key in ("failed", "skipped")
        if key in row
    ]
    reasons += [f"{row['case']}: {words}" for row in present if (words := busy_in_words(row))]
    usual = max((row["effort"]["starts"] for row in present), default=1)
    reasons += [f"{row['case']}: by --quick" for row in present if row["effort"]["starts"] < usual]
    reasons += ["all rows: by --quick"] if present and usual == 1 else []
    sources = {
        (row["code"], _machine(row)) for row in present if not {"failed", "skipped"} & row.keys()
    }
    return reasons + (["rows of several machines or versions"] if len(sources) > 1 else [])


def _machine(row: Row) -> tuple[str, ...]:
    return tuple(str(row["machine"][key]) for key in ("cpu", "cores", "torch", "compiler"))
