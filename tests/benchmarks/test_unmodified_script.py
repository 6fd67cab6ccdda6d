"""The table of programs that run as they are: one that needs no package, and one that fails."""

from __future__ import annotations

import sys

import pytest

from benchmarks.unmodified import measure
from scripts import begin_anew, finished


@pytest.mark.slow
def test_a_row(tmp_path):
    """Losses of both agree, and what ran is told."""
    words = ("-m", "benchmarks.unmodified.measure", "--steps", "2", "--only", "character")
    out = tmp_path / "table.md"
    finished(begin_anew(*words, "--out", str(out), ELMAN_ENGINE="reference"))
    line = out.read_text().splitlines()[-1]
    name, off, *_, ran = line.strip("| ").split(" | ")
    assert name == "a character model"
    assert float(off.partition(" ")[0]) < 1e-4
    assert ran == "1 torch.nn.LSTM, engine auto: reference"


def test_what_is_not_there(monkeypatch):
    """A program whose package is missing is a row that says so."""
    monkeypatch.setitem(measure.PROGRAMS, "missing", ("no_such_program.py",))
    assert measure.row("missing", sys.executable, 1, 60.0).startswith("| missing | ")
