"""Fresh processes: cells that no cache has, and what a process is given."""

from __future__ import annotations

import random
from functools import cache
from types import SimpleNamespace

import pytest

from elman.bench import starting
from elman.bench.cases import Case, Effort
from elman.bench.first_step import first_step
from elman.bench.processes import ProcessError, Program, environment, run_program
from elman.bench.random_cell import unseen_cell
from elman.bench.starting import measure_choosing, measure_import, measure_warm
from elman.nn import using


def test_unseen_cells_differ_and_train(tmp_path):
    """Each draw is another formula; it is written as a user would, and trains."""
    texts = {unseen_cell(random.Random(seed)) for seed in range(20)}
    assert len(texts) == 20
    path = tmp_path / "unseen.py"
    path.write_text(sorted(texts)[0])
    with using(engine="reference"):
        found = first_step(path, 2, 2, 3)
    assert found["seconds"] > 0
    (chosen,) = found["facts"]["l0"].values()
    assert chosen["engine"] == "reference"


def test_environment(tmp_path, monkeypatch):
    """Settings that would falsify a measurement are dropped; cache and threads are set."""
    monkeypatch.setenv("ELMAN_ENGINE", "reference")
    monkeypatch.setenv("ELMAN_POISON", "1")
    monkeypatch.setenv("ELMAN_CFLAGS", "-O0")
    found = environment(Program((), cache=tmp_path, threads=3))
    assert not {"ELMAN_CFLAGS", "ELMAN_ENGINE", "ELMAN_POISON"} & found.keys()
    assert found["ELMAN_CACHE"] == str(tmp_path)
    assert found["OMP_NUM_THREADS"] == "3"


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


@pytest.mark.slow
def test_starts_are_measured(monkeypatch):
    """Import and warm first step, once each, in real processes."""
    least = Effort(starts=1)
    with monkeypatch.context() as patch:
        patch.setattr(starting, "run_program", cache(run_program))  # the first import counts
        found = measure_import(Case("import", "import"), least)["seconds"]
    assert found["elman"]["median"] > 0
    assert found["torch"]["median"] > 0

    found = measure_warm(Case("warm", "warm", T=3, B=2, H=5, threads=1), least)
    assert found["seconds"]["elman"]["samples"] == 1
    (chosen,) = found["facts"]["elman"]["l0"].values()
    assert chosen["engine"] in {"c", "reference"}


CHOICE = SimpleNamespace(engine="c", schedule="units")


def test_choosing_alone(monkeypatch):
    """Kernels are compiled and verified before the clock starts; each round chooses anew."""
    asked = []
    monkeypatch.setattr(starting, "choose", lambda *_, **more: asked.append(more) or CHOICE)
    case = Case("choosing", "choosing", "lstm", 5, 3, 8, layers=2)
    found = measure_choosing(case, Effort(1.0, 3, 1))
    assert asked == [{}, *[{"again": True}] * 3]
    assert found["seconds"]["elman"]["samples"] == 3
    assert found["facts"] == {"elman": {"engine": "c", "schedule": "units"}}
