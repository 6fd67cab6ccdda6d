"""Optimizations that are left out: gone from the plan, and results are the same."""

from __future__ import annotations

import pytest
import torch

import elman
from calls import call
from elman import cells, compiler
from elman.errors import EngineError, InputError
from elman.plan.build import program
from elman.plan.cost import phase_nodes
from elman.plan.spec import OPTIMIZATIONS, PlanOptions
from helpers import Sizes, assert_all_same, oracle, random_case
from kernels import c_kernel, scheduled
from products import some_of
from specs import spec_of

by_name = pytest.mark.parametrize("cell", cells.CORE)


def phases(cell, *without, **options):
    """The phases of a cell's program, forward and backward, by name."""
    pair = compiler.pair_of(cell)
    wants = frozenset(entry.name for entry in (*cell.inputs, *cell.weights))
    sizes = cell.bind(128, 128)
    made = program(pair, spec_of(sizes.items(), wants=wants, without=frozenset(without), **options))
    sweeps = [sweep for sweep in (made.forward, made.backward) if sweep is not None]
    return {phase.name: phase for s in sweeps for phase in (s.before, s.step, s.after)}


def bundles(phase):
    return [b for segment in phase.segments for part in segment.parts for b in part.bundles]


@by_name
def test_unmerged_products_are_single(cell):
    """As many products as before, each by itself."""
    usual, without = phases(cell), phases(cell, "merging")
    for name, phase in without.items():
        products = [v for v in phase_nodes(usual[name]) if v.op == "matmul"]
        assert [v for v in phase_nodes(phase) if v.op == "matmul"] == products
        assert [[acc.terms for acc in b.accs] for b in bundles(phase)] == [
            [(value,)] for b in bundles(phase) for value in [b.accs[0].into]
        ]
        assert {b.accs[0].into for b in bundles(phase)} == {*products}


@by_name
def test_unfused_operations_stand_alone(cell):
    """One operation a segment; products of a segment, and scalars, are no pass over units of
    their own."""
    usual, without = phases(cell), phases(cell, "fusion")
    for name, phase in without.items():
        assert {*phase_nodes(phase)} == {*phase_nodes(usual[name])}
        for segment in phase.segments:
            vectors = [v for part in segment.parts for v in part.nodes]
            others = [v for v in vectors if v.op != "matmul"]
            assert len(others) <= (0 if len(vectors) > len(others) else 1)


@by_name
def test_nothing_is_hoisted(cell):
    """Before the loop nothing is computed; what was, is computed in it."""
    usual, without = phases(cell), phases(cell, "hoisting")
    before = {*phase_nodes(usual["forward before"])}
    assert not phase_nodes(without["forward before"])
    assert before <= {*phase_nodes(without["forward step"])}


def test_each_is_left_out_of_some_cell():
    """Every optimization changes a program, so that leaving it out measures something."""
    usual = elman.explain(cells.gru, measure=False)
    for name in OPTIMIZATIONS:
        told = elman.explain(cells.gru, measure=False, plan=PlanOptions(without=name))
        assert told.stages["program"] != usual.stages["program"]


@pytest.mark.parametrize(
    "cell, without",
    some_of(cells.CORE, [tuple(OPTIMIZATIONS), *((name,) for name in OPTIMIZATIONS)], together=1),
)
def test_results_are_the_same(cell, without, monkeypatch):
    """At odd sizes, T and B of 1 too, whoever shares a step, and with every tape of the plan."""
    for T, B in ((1, 1), (6, 5)):
        case = random_case(cell, Sizes(T, B, I=5, H=11), 3, torch.float64)
        want = oracle(case)
        kernel = c_kernel(case, without=frozenset(without))
        for schedule in (("one", 1, 100), ("batch", 3, 2), ("units", 3, 1)):
            with monkeypatch.context() as patch:
                scheduled(patch, kernel, *schedule)
                assert_all_same(call(kernel, case), want, case.dtype, T)


def test_modules_leave_out_too():
    """From a module to the program that runs: an engine that cannot do without is refused."""
    x = torch.randn(7, 2, 3)
    torch.manual_seed(0)
    net = elman.GRU(3, 5, engine="c", plan=PlanOptions(without=["merging", "fusion"]))
    like = elman.GRU(3, 5, engine="reference")
    like.load_state_dict(net.state_dict())
    torch.testing.assert_close(net(x)[0], like(x)[0])
    told = elman.explain(net, x).stages
    assert "without fusion, without merging" in told["program"]
    assert "aten" not in [one.name for one in elman.explain(net, x).engines if not one.refusal]
    with pytest.raises(EngineError, match="cannot leave out merging"):
        elman.Recurrent(cells.gru, 3, 5, engine="aten", plan=PlanOptions(without="merging"))(x)


def test_unknown_and_single_names():
    """What there is to leave out is listed; a name by itself is a list of one."""
    with pytest.raises(InputError, match=r"there is no optimization 'speed'(.|\n)*merging"):
        PlanOptions(without=["speed"])
    assert PlanOptions(without="merging") == PlanOptions(without=["merging"])
