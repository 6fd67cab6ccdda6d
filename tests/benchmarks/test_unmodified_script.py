"""The table of programs that run as they are: one that needs no package, and one that fails."""

from __future__ import annotations

import sys

import pytest

from benchmarks import studied
from benchmarks.rows import read_rows
from benchmarks.unmodified import measure
from scripts import begin_anew, finished


@pytest.mark.slow
def test_a_row(tmp_path, monkeypatch):
    """Losses of both agree, and what ran is told."""
    words = ("-m", "benchmarks.unmodified.measure", "--steps", "2", "--only", "character")
    out = tmp_path / "rows.jsonl"
    finished(begin_anew(*words, "--out", str(out), ELMAN_ENGINE="reference"))
    rows = read_rows(out)
    row = rows["a character model"]
    assert (row["steps"], row["ran"]) == (2, "1 torch.nn.LSTM, engine auto: reference")
    assert row["losses"] < 1e-4
    monkeypatch.setattr(studied, "script_rows", lambda name: rows)
    assert studied.programs().splitlines()[-1].startswith("| a character model | ")


def test_what_is_not_there(monkeypatch):
    """A program that cannot run is a row that says so, and a line of the table."""
    monkeypatch.setitem(measure.PROGRAMS, "missing", ("no_such_program.py",))
    row = measure.row("missing", sys.executable, 1, 60.0)
    assert "no_such_program" in row["error"]
    monkeypatch.setattr(studied, "script_rows", lambda name: {"missing": row})
    assert "no_such_program" in studied.programs()
