"""Suite ecornn: what its measures compare is the same, claims are judged on rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench_rows import steady
from benchmarks.cases import OURS, Effort
from benchmarks.claims import Rows, judged
from benchmarks.measures import operators
from benchmarks.measures.operators import LAYER, MOVING, POINTWISE, PRODUCTS, REST, by_kind
from benchmarks.measures.training import measure_steps
from benchmarks.peers.remote import enter
from benchmarks.problem import Contestant, draw_problem
from benchmarks.studies import learning_studies
from benchmarks.studies.learning_studies import measure_perplexities
from benchmarks.suites.ecornn import (
    AGAIN,
    CHOOSING,
    CURVES,
    ECORNN,
    FIRST,
    GRID,
    LAUNCHES,
    LAYOUTS,
    OPERATORS,
    PHASES,
    grid_name,
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
    entered = enter("torch", draw_problem(MODEL))
    before = entered.results()["loss"]
    entered.run()
    assert entered.results()["loss"] < before


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
    found = by_kind(events)
    assert found["seconds"] == pytest.approx(
        {PRODUCTS: 2.0, POINTWISE: 0.2, LAYER: 0.4, MOVING: 0.6, REST: 2.0}
    )
    assert found["operators"] == 7


def test_the_default_has_many_operators():
    """A loop's products are seen; the number of its operators grows with the steps."""
    small = replace(BY_NAME[OPERATORS], T=4, B=2, H=8)
    short, long = (
        operators.measure_operators(replace(small, T=T, contestants=("loop", "torch")), LEAST)
        for T in (4, 8)
    )
    for name, grows in (("loop", True), ("torch", False)):
        counts = [row["operators"][name]["operators"] for row in (short, long)]
        assert (counts[1] > 1.5 * counts[0]) == grows
    assert short["operators"]["loop"]["seconds"][PRODUCTS] > 0
    assert short["told"].startswith("loop ")


@pytest.mark.slow
def test_perplexities(monkeypatch, tmp_path):
    """Both libraries from one seed on equal steps; the text may be named in the environment."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {k % 7} of {k % 5}\n" for k in range(900)))
    monkeypatch.setattr(learning_studies, "WORD_STEPS", 20)
    monkeypatch.setattr(learning_studies, "_WORDS", 300)
    monkeypatch.setenv("ELMAN_BENCH_TEXT", str(text))
    small = replace(BY_NAME[CURVES], T=8, B=4, H=9)
    found = measure_perplexities(small, LEAST)
    ours, theirs = found["perplexities"][OURS], found["perplexities"]["torch"]
    assert len(ours) == len(theirs) == 10
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert ours[-1] < ours[0] < 40
    assert found["plots"][0]["lines"].keys() == {OURS, "torch"}


def timed(name: str, **seconds: float) -> dict:
    """A row of a contest."""
    case = BY_NAME[name]
    base = seconds[case.baseline] if case.baseline else 1.0
    return {
        "case": name,
        "asked": case.to_json(),
        "flop": 10**9,
        "seconds": {who.replace("_", "-"): steady(value) for who, value in seconds.items()},
        "ratio": {
            who.replace("_", "-"): steady(base / value)
            for who, value in seconds.items()
            if who != case.baseline
        },
        "facts": {OURS: {"l0": {"float32": {"engine": "c"}}}},
    }


def rows(ours: float, cold: float, loop: float, columns: float, off: float) -> list[dict]:
    """A row of every case, with these seconds where torch takes one."""
    kinds = {PRODUCTS: 0.9, POINTWISE: 0.1, LAYER: 0.0, MOVING: 0.0, REST: 0.0}
    one = {"seconds": kinds, "operators": 100}
    return [
        *(timed(grid_name(p), torch=1.0, loop=loop, elman=ours, elman_c=0.5) for p in GRID),
        timed(LAUNCHES, torch=1.0, loop=loop, elman=0.1),
        *(timed(layout_name(sizes), rows=1.0, columns=columns, elman_c=0.5) for sizes in LAYOUTS),
        timed(FIRST, elman=cold),
        timed(AGAIN, elman=0.05),
        timed(CHOOSING, elman=cold),
        {"case": OPERATORS, "operators": dict.fromkeys(("loop", "torch", OURS), one)},
        {
            "case": PHASES,
            "phases": {"steps: products": 0.5, "weight gradients": 0.5 - cold, "gates": cold},
        },
        {"case": CURVES, "perplexities": {OURS: [9.0, 5.0 * (1 + off)], "torch": [9.0, 5.0]}},
    ]


def test_claims_are_judged():
    """Rows as the abstract's hold; others do not; without rows nothing is said."""
    like = Rows(rows(ours=0.5, cold=0.01, loop=6.0, columns=0.5, off=0.001))
    assert {line[4] for line in judged(ECORNN.claims, like)} == {"holds"}
    unlike = Rows(rows(ours=1.1, cold=3.0, loop=1.2, columns=1.0, off=0.02))
    assert {line[4] for line in judged(ECORNN.claims, unlike)} == {"does not hold"}
    assert {line[4] for line in judged(ECORNN.claims, Rows([]))} == {"not measured"}


def test_the_worst_choice_is_named():
    """By how much, where, beside whom, and what was chosen how often."""
    every = rows(ours=0.5, cold=0.01, loop=6.0, columns=0.5, off=0.001)
    every[3] = timed(grid_name(GRID[3]), torch=1.0, loop=6.0, elman=0.8, elman_c=0.5)
    (line,) = [line for line in judged(ECORNN.claims, Rows(every)) if "20 %" in line[1]]
    layers, B, H = GRID[3]
    assert line[3] == f"-38% ({layers} x {H}, {B})"
    assert line[5].endswith(f"{len(GRID)} points, there elman-c; chosen: c {len(GRID)}")


def test_plots_are_of_what_was_measured():
    """Speeds by units, the choice beside the best, layouts; nothing where nothing was measured."""
    every = rows(ours=0.5, cold=0.01, loop=6.0, columns=0.5, off=0.001)
    speeds, best, layouts = ECORNN.plots(Rows(every))
    assert speeds["lines"][f"{OURS}, 2 layers, 20"] == [[200, 512, 650], [35 * 20 / 0.5] * 3]
    assert {value for _, values in best["lines"].values() for value in values} == {1.0}
    assert layouts["lines"]["columns"] == [[20, 64, 128, 700], [2.0] * 4]
    assert ECORNN.plots(Rows([])) == []
