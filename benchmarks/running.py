"""Run the cases of a suite one after the other, each in a process of its own."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.cases import Case, Effort, Suite, TrainedCase, packed
from benchmarks.machine import code
from benchmarks.programs import ProcessError, program, run_program
from benchmarks.rows import Row, append_row, read_rows
from elman.folders import VARIABLE

LIMIT_S = 1800.0  # of one case; serial code of 1000 samples takes over a minute a call
LEARNING_S = 4 * 3600.0  # of one in which models learn


def run_suite(
    suite: Suite, cases: tuple[Case, ...], effort: Effort, out: Path
) -> Iterator[tuple[Case, Row, bool]]:
    """Measure what the file does not have yet, appending each row as it is measured.

    A row of the file counts if the same code measured the same case with the same effort.

    Yields:
        Case, row, and whether it was measured now.

    Raises:
        RunError: the file cannot be read or written.
    """
    present, now = read_rows(out), code()
    peak: dict[str, float] = present.get("peak", {}).get("peak_gflops", {})
    with _own_cache() as cache:
        for case in cases:
            row, measured = present.get(case.name, {}), False
            if not _counts(row, case, effort, now["code"]):
                row, measured = _row(suite, case, effort, now, _measured(case, effort, cache)), True
                peak = row.get("peak_gflops", peak)
                row["machine"] = {**row.get("machine", {}), "peak_gflops": peak}
                append_row(out, row)
            peak = row.get("peak_gflops", peak)
            yield case, row, measured


def _counts(row: Row, case: Case, effort: Effort, digest: str) -> bool:
    current = json.loads(json.dumps([case.to_json(), asdict(effort), digest]))
    return not {"failed", "skipped"} & row.keys() and current == [
        row.get(k) for k in ("asked", "effort", "code")
    ]


def _measured(case: Case, effort: Effort, cache: Path | None) -> dict[str, Any]:
    text = packed(case, effort)
    worker = program("worker", cache=cache, threads=case.threads, text=text)
    try:
        limit_s = LEARNING_S if isinstance(case, TrainedCase) else LIMIT_S
        return json.loads(run_program(worker, limit_s))
    except ProcessError as error:
        return {"failed": str(error)}


def _row(
    suite: Suite, case: Case, effort: Effort, now: dict[str, str], measured: dict[str, Any]
) -> Row:
    return {
        "suite": suite.name,
        "case": case.name,
        "asked": case.to_json(),
        "effort": asdict(effort),
        **now,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        **measured,
    }


@contextmanager
def _own_cache() -> Iterator[Path | None]:
    """A cache of this run alone: engines are chosen now, not as on some other day.

    If ELMAN_CACHE is set, that one is used.
    """
    if os.environ.get(VARIABLE):
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="elman-bench-") as folder:
        yield Path(folder)
