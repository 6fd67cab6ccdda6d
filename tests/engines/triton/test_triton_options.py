"""Resets, masks and random numbers on engine triton: part of the step, in every schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import elman
from elman import cells, compiler, ops
from elman.engines.base import Job
from elman.engines.call import Call
from elman.engines.triton.engine import TritonEngine
from elman.frontend.cell import cell
from elman.nn.autograd.function import BoundKernel
from elman.nn.options.base import StepValues
from elman.nn.options.draws import DRAWS, draw_keys, key_sizes
from elman.nn.options.reset import RESETS, Reset
from elman.passes.draws import draws
from elman.tuning.kernels import kernel_of
from helpers import Sizes, assert_close, forced, job_of, random_case
from products import some_of

SCHEDULES = ["loop/16/4", "steps", "grid/16/2/3"]
pytestmark = [pytest.mark.interpreted]


@pytest.fixture
def in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules measure nothing: one schedule is judged in the interpreter, not all of them."""
    monkeypatch.setattr(TritonEngine, "schedules", lambda *given: (SCHEDULES[0],))


def never():
    """No second derivative is asked for."""
    raise AssertionError


def beside_reference(job: Job, schedule: str, tensors: Any, extend: Callable[[Call], Call]) -> None:
    """Output, last states and gradients as on the oracle."""
    results: list[list[Tensor]] = []
    for engine in ("triton", "reference"):
        values = [[v.clone().requires_grad_() for v in group.values()] for group in tensors]
        call = extend(Call(*map(tuple, values)))
        kernel = kernel_of(job, engine, schedule if engine == "triton" else "")
        out, last, _ = BoundKernel(kernel, never, True).run(call)
        loss = out.sin().sum() + sum(end.cos().sum() for end in last)
        leaves = [value for group in values for value in group]
        results.append([out, *last, *torch.autograd.grad(loss, leaves)])
    for got, want in zip(*results, strict=True):
        assert_close(got, want)


def modules_agree(net: Any, x: Tensor, **options: Any) -> None:
    """The same of a module, with an engine by name."""
    results: list[list[Tensor]] = []
    for engine in ("triton", "reference"):
        torch.manual_seed(0)
        with forced(engine):
            out, last = net(x, **options)
        ends = last if isinstance(last, tuple) else (last,)
        loss = out.sin().sum() + sum(end.cos().sum() for end in ends)
        grads = torch.autograd.grad(loss, [x, *net.parameters()])
        results.append([out, *ends, *grads])
    for got, want in zip(*results, strict=True):
        assert_close(got, want)


@pytest.mark.parametrize(
    "cell, to, schedule", some_of([cells.gru, cells.lstm_peephole], [*RESETS], SCHEDULES)
)
def test_resets(cell, to, schedule):
    """To zeros, to the initial state, and to one that is learned."""
    case = random_case(cell, Sizes(T=4, B=3, I=3, H=5))
    rule = RESETS[to]
    graph, spec = compiler.graph_of(cell, (rule,)), job_of(case).spec
    names = {leaf.name for leaf in (*graph.inputs, *graph.weights)}
    job = compiler.job(cell, replace(spec, wants=spec.wants | names - {"reset"}), (rule,))
    mask = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 1]]) != 0
    begins = {name: v[0] for name, v in case.states.items()} if to == "learned" else {}
    tensors = (case.inputs, case.states, {**case.weights, **begins})
    values = StepValues("reset", (to,), (mask,))
    beside_reference(job, schedule, tensors, lambda call: Reset().extend(values, call, False, 0))


@cell(input="x[I]", state="h[H], c[H]", weights="W[2H, I], R[2H, H], b[2H]")
def noisy(x, h, c, W, R, b):
    """Draws of inputs, states, gates of two blocks, and scalars; per step and per sequence."""
    a = W @ ops.dropout(x, 0.3) + R @ ops.dropout(h, 0.2, per="sequence") + b
    i, n = ops.split(ops.tanh(a + 0.1 * ops.noise(a)), 2)
    c = ops.zoneout(0.5 * c + i * n, c, 0.4)
    return ops.zoneout(ops.sin(c + 0.1 * ops.uniform(1.0 * ops.sum(x))), h, 0.4), c


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_draws(schedule):
    """The numbers of the oracle."""
    case = random_case(noisy, Sizes(T=4, B=3, I=3, H=5))
    job = compiler.job(noisy, job_of(case).spec, compiler.training_rules(noisy))
    torch.manual_seed(0)
    per = draws(noisy.graph)
    keys = draw_keys(key_sizes(per, 1, (4, 3), 3), torch.float32, torch.device("cpu"))
    values = StepValues("draws", tuple(per), tuple(keys))
    tensors = (case.inputs, case.states, case.weights)
    beside_reference(job, schedule, tensors, lambda call: DRAWS.extend(values, call, False, 0))


@pytest.mark.usefixtures("in_a_loop")
@pytest.mark.parametrize("options", [{"num_layers": 2}, {"bidirectional": True}])
def test_modules(options):
    """A stack, and both directions: resets, masks beside them, draws and several lengths."""
    x, mask = torch.randn(4, 3, 3, requires_grad=True), torch.rand(4, 3) < 0.4
    modules_agree(elman.GRU(3, 5, engine="triton", **options), x, reset=mask)
    if "bidirectional" in options:
        modules_agree(elman.GRU(3, 5, engine="triton", **options), x, mask=~mask, reset=mask)
    for lengths in (None, [2, 4, 1]):
        net = elman.Recurrent(noisy, 3, 5, engine="triton", **options)
        modules_agree(net, x, lengths=lengths)


@pytest.mark.usefixtures("in_a_loop")
@pytest.mark.parametrize("to", ["zeros", "initial"])
def test_heads(to):
    """Resets of heads side by side, dense and of several lengths."""
    torch.manual_seed(0)
    net = elman.Recurrent(cells.lstm, 4, 6, engine="triton", heads=2)
    mask = torch.rand(5, 3) < 0.4
    for lengths in (None, [2, 5, 3]):
        x = torch.randn(5, 3, 4, requires_grad=True)
        modules_agree(net, x, reset=mask, reset_to=to, lengths=lengths)
