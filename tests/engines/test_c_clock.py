"""The clock in kernels of engine c: it changes no result, and is not there unless asked for."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks.workloads.custom_cells import tanh_readout
from calls import call, call_of, given_of
from elman import cells, compiler
from elman.engines.c.compilation.isa import detect
from elman.engines.c.engine import ENGINE, PRICES
from elman.engines.c.text.emit import Emitter
from elman.explaining import explain
from elman.plan.build import program
from elman.tuning.trial import phases
from helpers import Sizes, assert_all_same, need, need_engine, oracle, random_case
from specs import spec_of

CELLS = [tanh_readout, cells.lstm_layernorm]


def timed(case, **options):
    wants = frozenset((*case.inputs, *case.weights))
    job = compiler.job(case.cell, spec_of(case.dims.items(), wants=wants, **options))
    need("c", job)
    return ENGINE.timed(job)


@pytest.mark.parametrize("cell", CELLS)
def test_a_clock_changes_no_result(cell):
    """Results are the oracle's; what is asked once is not told again."""
    case = random_case(cell, Sizes(7, 3, 5, 19), 1, torch.float32)
    kernel = timed(case)
    assert_all_same(call(kernel, case), oracle(case), torch.float32, 7)
    taken = kernel.phases()
    assert taken["forward, steps: products"] > 0
    assert taken["backward, steps: pointwise"] > 0
    assert not any(kernel.phases().values())


def test_phases_add_up():
    """By one thread, phases take the time of a call but for what Python does around it."""
    case = random_case(tanh_readout, Sizes(50, 32, 256, 256), 1, torch.float32)
    kernel, given = timed(case, without=frozenset({"threads"})), call_of(given_of(case))
    for _ in range(1000):  # whoever else takes the core makes some of them long
        start = time.perf_counter()
        kernel.forward(given)
        elapsed, inside = time.perf_counter() - start, sum(kernel.phases().values())
        assert inside <= elapsed
        if inside > elapsed / 2:
            return
    pytest.fail("most of a call is in no phase")


def test_no_clock_without_asking():
    """The usual text does not look at a clock, and a kernel of it has no phases."""
    spec = spec_of({"I": 5, "H": 19}.items(), wants=frozenset("WRV"))
    made = program(compiler.job(tanh_readout, spec).pair, spec, PRICES)
    texts = [Emitter(made, detect(), timed=on).text() for on in (False, True)]
    assert "spent(" not in texts[0]
    assert "spent(" in texts[1]
    head, _, _ = texts[0].partition("static void forward_arena")
    assert texts[1].startswith(head.rstrip())


def test_engines_without_a_clock():
    """They have no phases to tell of."""
    spec = spec_of({"I": 5, "H": 19}.items(), wants=frozenset("WRV"))
    assert not phases(compiler.job(tanh_readout, spec), "reference", "", 3, 2)


def test_explain_tells_phases():
    """Where engine c runs and something may be measured; shares of all the time."""
    need_engine("c")
    found = explain(cells.mgu, hidden_size=16, steps=5, batch=3, engine="c").stages["engines"]
    assert "where the time of a call goes" in found
    shares = [line.split("%")[0] for line in found.splitlines() if "%  " in line]
    assert sum(map(float, shares)) == pytest.approx(100, abs=1)
    told = explain(cells.mgu, hidden_size=16, steps=5, batch=3, measure=False).stages["engines"]
    assert "where the time" not in told
