"""Suite long: what the paper says is judged on rows; what was not measured is told."""

from __future__ import annotations

from benchmarks.cases import Effort
from benchmarks.studies.trainer_models import STUDIES as KINDS
from benchmarks.suites.long import LONG
from benchmarks.worker import measure

LEAST = Effort(1e-9, 1, 1)


def test_without_data_a_row_names_the_file(monkeypatch):
    """In one line, before anything runs."""
    for kind in KINDS.values():
        monkeypatch.delenv(kind.variable, raising=False)
    for case in LONG.cases:
        row = measure(case, LEAST)
        assert "failed" not in row
        assert row["skipped"].startswith(
            f"no data: set {KINDS[case.kind].variable} to an .npz with"
        )
        assert "\n" not in row["skipped"]
