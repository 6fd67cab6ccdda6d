"""Fresh processes that meet a cell which no cache has."""

from __future__ import annotations

import random
from types import SimpleNamespace

from benchmarks import worker
from benchmarks.cases import Case, Effort
from benchmarks.measures import starting
from benchmarks.measures.first_step import first_step
from benchmarks.measures.starting import (
    CHOOSING,
    IMPORT,
    measure_choosing,
    unseen_cell,
)
from benchmarks.suites import layers
from benchmarks.table import reached
from elman.nn import using


def test_unseen_cells_differ_and_train(tmp_path):
    """Each draw is another formula; it is written as a user would, and trains."""
    texts = {unseen_cell(random.Random(seed)) for seed in range(20)}
    assert len(texts) == 20
    path = tmp_path / "unseen.py"
    path.write_text(sorted(texts)[0])
    with using(engine="reference"):
        result = first_step(path, 2, 2, 3)
    assert result["seconds"] > 0
    (record,) = result["facts"]["l0"].values()
    assert record["engine"] == "reference"


def test_a_busy_machine_is_seen_where_others_ran(monkeypatch):
    """Of an import that waited for a core in its own process, and of a peak whose threads have
    ended: neither gives a verdict."""
    outputs = ['{"torch": 1.0, "elman": 2.0, "waited": 0.1}'] * 2
    outputs.append('{"torch": 1.0, "elman": 2.0, "waited": 0.6}')
    monkeypatch.setattr(starting, "run_program", lambda *_: outputs.pop(0))
    case = Case("import", IMPORT, seconds=0.3)
    row = worker.measure(case, Effort(starts=2))
    assert row["waited"] == 0.6
    assert reached({**row, "asked": case.to_json()}) is None
    monkeypatch.setattr(worker, "peak_gflops", lambda threads: {"2": 7.0})
    monkeypatch.setattr(worker.Waiting, "share", lambda waiting: 0.4)
    assert worker.measure_peak(worker.PEAK, Effort()) == {"peak_gflops": {"2": 7.0}, "waited": 0.4}


def test_two_runs_at_once_are_not_other_programs(monkeypatch):
    """What they wait for each other makes no machine busy; other programs before or after do."""
    shares = iter((0.1, 0.3))
    monkeypatch.setattr(layers, "busy_share", lambda: next(shares))
    monkeypatch.setattr(layers, "measure_steps", lambda *_: {"seconds": {}, "waited": 0.9})
    case = next(case for case in layers.STREAMS.cases if case.measure is layers.TWICE)
    assert layers.measure_twice(case, Effort()) == {"seconds": {}, "waited": 0.3}


CHOICE = SimpleNamespace(engine="c", schedule="units")


def test_choosing_alone(monkeypatch):
    """Kernels are compiled and verified before the clock starts; each round chooses anew."""
    options_of_calls = []
    monkeypatch.setattr(
        starting, "choose", lambda *_, **options: options_of_calls.append(options) or CHOICE
    )
    case = Case("choosing", CHOOSING, "lstm", 5, 3, 8, layers=2)
    result = measure_choosing(case, Effort(1.0, 3, 1))
    assert options_of_calls == [{}, *[{"again": True}] * 3]
    assert result["seconds"]["elman"]["samples"] == 3
    assert result["facts"] == {"elman": {"engine": "c", "schedule": "units"}}
