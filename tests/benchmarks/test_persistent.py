"""Suite persistent: products per step compute the layer, weights come from memory, claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench_rows import steady
from benchmarks.cases import Effort
from benchmarks.claims import Rows, judged
from benchmarks.measures.training import measure_steps
from benchmarks.problem import draw_problem
from benchmarks.suites.persistent import (
    COLD,
    PERSISTENT,
    RESIDENT,
    SIZES,
    STEPPED,
    UNITS,
    WAYS,
    name_of,
    phases_of,
)
from benchmarks.workloads import weight_residency
from benchmarks.workloads.weight_residency import stepped
from elman.engines.base import WAITING
from elman.errors import EngineError
from helpers import need_engine

LEAST = Effort(1e-9, 1, 1)
BY_NAME = {case.name: case for case in PERSISTENT.cases}
SMALL = replace(BY_NAME[name_of(512, 4)], T=3, B=2, H=9, I=4)
FASTER = {RESIDENT: 1.0, STEPPED: 3.0, COLD: 40.0}  # seconds at the smallest minibatch


def test_all_ways_agree():
    """With torch's layer, in float64 and float32; each is timed."""
    need_engine("c")
    found = measure_steps(SMALL, LEAST)
    assert not found["absent"]
    assert {*found["seconds"]} == {*WAYS, "torch"}
    # Two per multiplication: H (I + H) of them per step and sample.
    assert found["flop"] == 2 * 3 * 2 * 9 * (4 + 9)


def test_weights_come_from_other_memory_each_step(monkeypatch):
    """So many copies, one after another, that all of them are as large as was asked for."""
    problem = draw_problem(SMALL)
    size = problem.weights["weight_hh_l0"].numel() * 4
    monkeypatch.setattr(weight_residency, "COLD_BYTES", 5 * size - 1)
    read: list[int] = []
    plain = torch.addmm

    def noted(row, h, weight):
        read.append(weight.data_ptr())
        return plain(row, h, weight)

    monkeypatch.setattr(weight_residency.torch, "addmm", noted)
    layer = stepped(problem, cold=True)
    for _ in range(5):
        layer(problem.x)
    assert len(read) == 15
    assert len({*read}) == 5
    assert read[:5] * 3 == read
    stepped(problem)(problem.x)
    assert {*read[15:]} == {problem.weights["weight_hh_l0"].data_ptr()}


def test_another_cell():
    """Is refused, by its reason."""
    for other in (replace(SMALL, cell="gru"), replace(SMALL, layers=2)):
        with pytest.raises(EngineError, match="one layer of rnn alone"):
            stepped(draw_problem(other))


def rows(gain_of_minibatch: float, waiting: float) -> list[dict]:
    """Rows whose resident time grows as the minibatch, and by how much others close up."""
    found = []
    for H in UNITS:
        for B in SIZES:
            seconds = {
                way: steady(B * (1.0 if way == RESIDENT else taken / B**gain_of_minibatch))
                for way, taken in FASTER.items()
            }
            found.append({"case": name_of(H, B), "flop": B * 10**9, "seconds": seconds})
        found.append({"case": phases_of(H), "phases": {WAITING: waiting, "products": 1.0}})
    return found


def verdicts(found: list[dict]) -> list[str]:
    """Of all claims, in order."""
    return [line[4] for line in judged(PERSISTENT.claims, Rows(found))]


def test_claims_are_judged():
    """As in the paper; otherwise; and of nothing."""
    assert verdicts(rows(0.1, 0.3)) == ["holds"] * 4
    assert verdicts(rows(1.0, 0.1))[0] == "does not hold"
    assert verdicts(rows(0.0, 0.1))[2:] == ["does not hold"] * 2
    slow = rows(0.1, 0.3)
    for row in slow:
        if row["case"] == name_of(512, 64) or row["case"] == name_of(1152, 64):
            row["flop"] *= 2
    assert verdicts(slow)[1] == "does not hold"
    assert verdicts([]) == ["not measured"] * 4


def test_plots():
    """A line for each way, throughput over the minibatch."""
    plots = PERSISTENT.plots(Rows(rows(0.0, 0.3)))
    assert [len(plot["lines"]) for plot in plots] == [3, 3]
    assert plots[0]["lines"]["resident"] == [[*SIZES], [1.0] * len(SIZES)]
    assert PERSISTENT.plots(Rows([])) == []
