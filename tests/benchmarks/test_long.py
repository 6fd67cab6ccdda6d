"""Suite long: what the paper says is judged on rows; what was not measured is told."""

from __future__ import annotations

import pytest

from bench_rows import steady
from benchmarks.cases import Effort
from benchmarks.claims import Rows, judged
from benchmarks.studies.trainer_models import STUDIES as KINDS
from benchmarks.suites.long import AT_ONCE, GRU, HALF, HEADS, LEM, LONG, LOOP, WHOLE
from benchmarks.worker import measure

LEAST = Effort(1e-9, 1, 1)


def row(case: str, accuracy: float, **seconds: float) -> dict:
    """A study in which deer takes so long, torch and a loop 1 s, and all else 0.1 s."""
    times = {LOOP: 0.1, "elman": 0.1, HALF: 0.1, "torch": 1.0, "loop": 1.0}
    times[AT_ONCE] = seconds["deer"]
    return {
        "case": case,
        "asked": {"steps": 100, "B": 4, "H": 16},
        "seconds": {name: steady(value) for name, value in times.items()},
        "off": {name: seconds.get("off", 1e-7) for name in times},
        "scores": [[50, 2.0, accuracy / 2], [100, 1.0, accuracy]],
        "accuracy": accuracy,
        "chance": 0.2,
    }


THERE = [
    row(HEADS, 0.91, deer=0.01),
    row(WHOLE, 0.80, deer=0.02),
    row(GRU, 0.88, deer=0.04),
    row(LEM, 0.92, deer=0.04),
]
HERE = [
    row(HEADS, 0.3, deer=9, off=1e-2),
    row(WHOLE, 0.4, deer=8),
    row(GRU, 0.3, deer=30),
    row(LEM, 0.2, deer=60),
]


@pytest.mark.parametrize("rows, verdict", [(THERE, "holds"), (HERE, "does not hold")])
def test_claims_are_judged(rows, verdict):
    """The paper's own figures hold; slow, wrong and untrained ones do not."""
    lines = judged(LONG.claims, Rows(rows))
    assert [line[4] for line in lines] == [verdict] * len(LONG.claims)
    assert all(line[3] and line[5] for line in lines)


def test_what_is_not_measured_is_told():
    """Without a row, or without a contestant in it."""
    assert {line[4] for line in judged(LONG.claims, Rows([]))} == {"not measured"}
    slow = {**HERE[2], "seconds": {"torch": steady(1.0)}}
    lines = judged(LONG.claims, Rows([slow]))
    assert f"{AT_ONCE} was not measured in {GRU}" in {line[5] for line in lines}


def test_plots():
    """Accuracy of the cells beside each other; none of what was not measured."""
    pixels, speech = LONG.plots(Rows(THERE))
    assert pixels["lines"].keys() == {HEADS, WHOLE}
    assert speech["lines"][LEM] == [[50, 100], [0.46, 0.92]]
    assert not LONG.plots(Rows([]))


def test_cases_are_of_equal_size():
    """Cells that are compared have the same units, steps and batches; each has a quick case."""
    cases = {case.name: case for case in LONG.cases}
    for one, other in ((HEADS, WHOLE), (GRU, LEM)):
        a, b = cases[one], cases[other]
        assert (a.T, a.B, a.H, a.layers, a.steps) == (b.T, b.B, b.H, b.layers, b.steps)
    assert {case.kind for case in LONG.select(quick=True)} == {*KINDS}


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
