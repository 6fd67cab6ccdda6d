"""The README's measured table, written from committed rows between two marker comments."""

from __future__ import annotations

from elman.bench.cases import Suite
from elman.bench.results import Row
from elman.bench.table import filled, machine_line
from elman.errors import InputError, RunError, diagnostic

END = "<!-- /bench -->"


def start_of(suite: Suite) -> str:
    """The comment that the table of a suite stands behind."""
    return f"<!-- bench:{suite.name} -->"


def section(text: str, suite: Suite) -> tuple[int, int] | None:
    """Where the table of a suite stands in a text, or None without both markers."""
    start = text.find(start_of(suite))
    end = text.find(END, max(start, 0))
    return None if start < 0 or end < 0 else (start + len(start_of(suite)), end)


def rewritten(text: str, suite: Suite, table: str) -> str:
    """The text with another table between the markers.

    Raises:
        InputError: there are no markers.
    """
    span = section(text, suite)
    if span is None:
        raise InputError(
            diagnostic("no place for the table", [("need", f"{start_of(suite)} … {END}")])
        )
    return f"{text[: span[0]]}\n{table}\n{text[span[1] :]}"


def markdown(suite: Suite, measured: dict[str, Row]) -> str:
    """All cases of a suite as a table, and the machine with its peak below it.

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
    """Why rows are not fit to be shown: every case must be there, by one code on one machine."""
    reasons = [f"{case.name}: missing" for case in suite.cases if case.name not in measured]
    present = [measured[case.name] for case in suite.cases if case.name in measured]
    reasons += [f"{row['case']}: {row['failed']}" for row in present if "failed" in row]
    usual = max((row["effort"]["starts"] for row in present), default=1)
    reasons += [f"{row['case']}: by --quick" for row in present if row["effort"]["starts"] < usual]
    reasons += ["all rows: by --quick"] if present and usual == 1 else []
    sources = {(row["code"], _machine(row)) for row in present if "failed" not in row}
    return reasons + (["rows of several machines or versions"] if len(sources) > 1 else [])


def _machine(row: Row) -> tuple[str, ...]:
    return tuple(str(row["machine"][key]) for key in ("cpu", "cores", "torch", "compiler"))
