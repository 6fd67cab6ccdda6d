"""Fresh processes: what one is given, and what it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import elman
from benchmarks.programs import ProcessError, Program, environment, run_program


def test_environment(tmp_path, monkeypatch):
    """Settings that would falsify a measurement are dropped; cache, threads and path are set."""
    monkeypatch.setenv("ELMAN_ENGINE", "reference")
    monkeypatch.setenv("ELMAN_POISON", "1")
    monkeypatch.setenv("ELMAN_CFLAGS", "-O0")
    monkeypatch.setenv("PYTHONPATH", "before")
    found = environment(Program((), (tmp_path / "more",), tmp_path, threads=3))
    assert not {"ELMAN_CFLAGS", "ELMAN_ENGINE", "ELMAN_POISON"} & found.keys()
    assert found["ELMAN_CACHE"] == str(tmp_path)
    assert found["OMP_NUM_THREADS"] == "3"
    package = str(Path(elman.__path__[0]).parent)
    assert found["PYTHONPATH"].split(os.pathsep) == [package, str(tmp_path / "more"), "before"]


def test_last_line_counts():
    """What libraries print before does no harm; standard input arrives."""
    text = "import sys; print('noise'); print(sys.stdin.read())"
    assert run_program(Program(("-c", text), text="row"), 60) == "row"


def test_failures_of_a_process_are_told():
    """Its last words, its silence, or the time it took."""
    with pytest.raises(ProcessError, match="ValueError: no"):
        run_program(Program(("-c", "raise ValueError('no')")), 60)
    with pytest.raises(ProcessError, match="it ended with 3"):
        run_program(Program(("-c", "raise SystemExit(3)")), 60)
    with pytest.raises(ProcessError, match="printed nothing"):
        run_program(Program(("-c", "")), 60)
    with pytest.raises(ProcessError, match=r"longer than 0\.5 s"):
        run_program(Program(("-c", "import time; time.sleep(60)")), 0.5)
