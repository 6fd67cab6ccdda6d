"""Suite ecornn: what its measures compare is the same, claims are judged on rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cases import OURS, Effort
from benchmarks.measures.operators import LAYER, MOVING, POINTWISE, PRODUCTS, REST, by_kind
from benchmarks.measures.training import measure_steps
from benchmarks.peers.remote import enter
from benchmarks.problem import Contestant, draw_problem
from benchmarks.suites.ecornn import (
    ECORNN,
    LAYOUTS,
    layout_name,
)
from benchmarks.workloads import language, products
from benchmarks.workloads.products import measure_products
from elman.errors import VerifyError

LEAST = Effort(1e-9, 1, 1)
BY_NAME = {case.name: case for case in ECORNN.cases}
PRODUCT = replace(BY_NAME[layout_name(LAYOUTS[0])], B=3, I=5, H=7)
MODEL = replace(BY_NAME["model 2 lstm 35,20,200"], T=3, B=2, H=6)


def test_layouts_are_one_product(monkeypatch):
    """Both agree with float64, and their speed is that of 2 B I H operations."""
    row = measure_products(PRODUCT, LEAST)
    assert row["flop"] == 2 * 3 * 5 * 7
    assert row["told"].startswith("GFLOP/s: rows ")
    assert row["ratio"].keys() == {"columns", "elman-c"}

    def other(problem):
        return Contestant(lambda: None, lambda: {"output": problem.x @ problem.x.t()}, (), dict)

    monkeypatch.setitem(products.PRODUCTS, "columns", other)
    with pytest.raises(VerifyError, match="columns disagrees with rows"):
        measure_products(replace(PRODUCT, H=3), LEAST)


def test_models_are_one(monkeypatch):
    """Loss and every gradient of the whole model; one on other words is found."""
    monkeypatch.setattr(language, "WORDS", 11)
    want = enter("torch", draw_problem(MODEL).double()).results()
    names = {name.removeprefix("gradient of ") for name in want} - {"loss"}
    assert {"embedding.weight", "readout.linear.weight", "readout.linear.bias"} < names
    row = measure_steps(MODEL, LEAST)
    assert row["ratio"].keys() == {OURS}
    assert max(row["error"].values()) < 1e-5
    plain = language.predicted

    def other(name, problem):
        return plain(name, replace(problem, dy=(problem.dy + (name == OURS)) % 11))

    model = replace(MODEL, measure=replace(MODEL.measure, enter=other))
    with pytest.raises(VerifyError, match="elman disagrees with torch"):
        measure_steps(model, LEAST)


def test_a_step_of_a_model_updates_it(monkeypatch):
    """What is timed is the whole step; what is compared is before it."""
    monkeypatch.setattr(language, "WORDS", 11)
    monkeypatch.setattr(language, "_RATE", 1.0)
    contestant = enter("torch", draw_problem(MODEL))
    before = contestant.results()["loss"]
    contestant.run()
    assert contestant.results()["loss"] < before


def test_operators_are_sorted_by_kind():
    """Own times per call, by kind; views and nodes of autograd are the rest, and not operators."""
    events = [
        ("aten::addmm", 5e6, 10),
        ("aten::mm", 5e6, 5),
        ("aten::tanh_backward", 1e6, 5),
        ("aten::mkldnn_rnn_layer", 2e6, 5),
        ("aten::cat", 3e6, 5),
        ("aten::t", 4e6, 5),
        ("AddmmBackward0", 6e6, 5),
    ]
    result = by_kind(events)
    assert result["seconds"] == pytest.approx(
        {PRODUCTS: 2.0, POINTWISE: 0.2, LAYER: 0.4, MOVING: 0.6, REST: 2.0}
    )
    assert result["operators"] == 7
