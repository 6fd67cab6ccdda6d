"""States that only hold a value: read in every way, by every engine, with one row per sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import elman
from elman import PlanOptions, compiler
from elman.engines.c.run.kernel import CKernel
from elman.plan.spec import Spec
from elman.tuning.kernels import kernel_of
from helpers import assert_close, need_engine
from unseen import HOLDING, epilogue, half, holding

F64 = torch.float64
PLANS = PlanOptions("save"), PlanOptions("recompute"), PlanOptions(checkpoint=3)


def results(net: Any, x: torch.Tensor, state: Any, **more: Any) -> list[torch.Tensor]:
    """Values and every gradient."""
    out, last = net(x, state, **more)
    values, source = [out, *last], torch.Generator().manual_seed(1)
    ds = [torch.randn(v.shape, generator=source, dtype=F64) for v in values]
    leaves = [x, *state, *net.parameters()]
    grads = torch.autograd.grad(values, leaves, ds, allow_unused=True, materialize_grads=True)
    return [*values, *grads]


@pytest.mark.parametrize("engine", ["c", "deer", "scan-backward"])
@pytest.mark.parametrize("of", HOLDING)
def test_agreement(of, engine):
    """Dense and of several lengths; with every tape, and in spans of steps."""
    need_engine(engine)
    more = {"P": 3} if of is epilogue else {}
    judge = elman.Recurrent(of, 4, 14, engine="reference", dtype=F64, **more)
    options = [{"plan": plan} for plan in PLANS] + [{"num_layers": 2}]
    for chosen in options if engine == "c" else [{}]:
        torch.manual_seed(0)
        net = elman.Recurrent(of, 4, 14, engine=engine, dtype=F64, **more, **chosen)
        if "num_layers" in chosen:
            judge = elman.Recurrent(of, 4, 14, 2, engine="reference", dtype=F64, **more)
        judge.load_state_dict(net.state_dict())
        x = torch.randn(7, 5, 4, dtype=F64, requires_grad=True)
        with torch.no_grad():
            _, last = net(x)
        state = [torch.randn_like(end).requires_grad_() for end in last]
        for told in ({}, {"lengths": [3, 7, 1, 7, 2]}):
            want = results(judge, x, state, **told)
            for a, b in zip(results(net, x, state, **told), want, strict=True):
                assert_close(a, b)
            with torch.no_grad():
                assert_close(net(x, state, **told)[0], want[0])


def test_rows_of_engine_c():
    """One row per sample: neither tape nor states of steps have more."""
    need_engine("c")
    dims = tuple(sorted(holding.bind(4, 14).items()))
    job = compiler.job(holding, Spec(dims, "float64", wants=frozenset("WRQ")))
    kernel = kernel_of(job, "c")
    assert isinstance(kernel, CKernel)
    assert kernel.emitter.layout.held == {1, 2}
    growth = kernel.tape_bytes(101, 5) - kernel.tape_bytes(100, 5)
    assert growth == 8 * 5 * (kernel.results.tape_row + 14)
    mixed = kernel_of(compiler.job(half, Spec((("H", 7), ("I", 4)), "float64")), "c")
    assert isinstance(mixed, CKernel)
    assert mixed.emitter.layout.held == {1}, "an array is held as a whole, or not"
