"""Suite persistent: products per step compute the layer, weights come from memory, claims."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.cases import Effort
from benchmarks.measures.training import measure_steps
from benchmarks.problem import draw_problem
from benchmarks.suites.persistent import (
    PERSISTENT,
    WAYS,
    name_of,
)
from benchmarks.workloads import weight_residency
from benchmarks.workloads.weight_residency import stepped
from helpers import need_engine

LEAST = Effort(1e-9, 1, 1)
BY_NAME = {case.name: case for case in PERSISTENT.cases}
SMALL = replace(BY_NAME[name_of(512, 4)], T=3, B=2, H=9, I=4)


def test_all_ways_agree():
    """With torch's layer, in float64 and float32; each is timed."""
    need_engine("c")
    row = measure_steps(SMALL, LEAST)
    assert not row["absent"]
    assert {*row["seconds"]} == {*WAYS, "torch"}
    # Two per multiplication: H (I + H) of them per step and sample.
    assert row["flop"] == 2 * 3 * 2 * 9 * (4 + 9)


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
