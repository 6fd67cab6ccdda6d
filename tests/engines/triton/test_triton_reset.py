"""Resets and masks on engine triton: part of the step, in every schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import elman
from elman import cells, compiler
from elman.engines.call import Call
from elman.nn.autograd.function import run
from elman.nn.options.base import StepValues
from elman.nn.options.reset import RESETS, Reset
from elman.tuning.kernels import kernel_of
from helpers import Sizes, assert_close, forced, job_of, random_case
from products import some_of

pytestmark = [pytest.mark.interpreted]


def never():
    """No second derivative is asked for."""
    raise AssertionError


@pytest.mark.parametrize(
    "cell, to, schedule",
    some_of([cells.gru, cells.lstm_peephole], [*RESETS], ["loop/16/4/1", "steps", "grid/16/2/3/1"]),
    ids=lambda value: getattr(value, "name", value),
)
def test_every_schedule(cell, to, schedule):
    """Output, last states and gradients as on the oracle."""
    case = random_case(cell, Sizes(T=4, B=3, I=3, H=5))
    rule = RESETS[to]
    graph, spec = compiler.graph_of(cell, (rule,)), job_of(case).spec
    names = {leaf.name for leaf in (*graph.inputs, *graph.weights)}
    spec = replace(spec, wants=spec.wants | names - {"reset"})
    job = compiler.job(cell, spec, (rule,))
    mask = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 1]])
    begins = {name: v[0] for name, v in case.states.items()} if to == "learned" else {}
    tensors = (case.inputs, case.states, {**case.weights, **begins})
    found = []
    for engine in ("triton", "reference"):
        values = [[v.clone().requires_grad_() for v in group.values()] for group in tensors]
        plain = Call(*map(tuple, values))
        call = Reset().extend(StepValues("reset", (to,), (mask != 0,)), plain, False, 0)
        kernel = kernel_of(job, engine, schedule if engine == "triton" else "")
        out, last, _ = run(kernel, never, call, True)
        loss = out.sin().sum() + sum(end.cos().sum() for end in last)
        leaves = [value for group in values for value in group]
        found.append([out, *last, *torch.autograd.grad(loss, leaves)])
    for got, want in zip(*found, strict=True):
        assert_close(got, want)


def test_modules():
    """A stack, and both directions."""
    x, mask = torch.randn(4, 3, 3), torch.rand(4, 3) < 0.4
    for options in ({"num_layers": 2}, {"bidirectional": True}):
        net = elman.GRU(3, 5, engine="triton", **options)
        with forced("reference"):
            want = net(x, reset=mask)
        for got, value in zip(net(x, reset=mask), want):
            assert_close(got, value)


@pytest.mark.parametrize("to", ["zeros", "initial"])
def test_heads(to):
    """Heads side by side, dense and of several lengths: values and gradients, of replayed calls
    too."""
    torch.manual_seed(0)
    net = elman.Recurrent(cells.lstm, 4, 6, engine="triton", heads=2)
    mask = torch.rand(5, 3) < 0.4
    for lengths in (None, None, None, [2, 5, 3]):
        x = torch.randn(5, 3, 4, requires_grad=True)
        found = []
        for engine in ("triton", "reference"):
            with forced(engine):
                out, last = net(x, reset=mask, reset_to=to, lengths=lengths)
            loss = out.sin().sum() + sum(end.cos().sum() for end in last)
            found.append([out, *last, *torch.autograd.grad(loss, [x, *net.parameters()])])
        for got, want in zip(*found, strict=True):
            assert_close(got, want)


def test_masks():
    """Of both directions, beside resets, with every gradient."""
    x, mask = torch.randn(4, 3, 3, requires_grad=True), torch.rand(4, 3) < 0.6
    net = elman.GRU(3, 5, engine="triton", bidirectional=True)
    found = []
    for engine in ("triton", "reference"):
        with forced(engine):
            out, last = net(x, mask=mask, reset=~mask)
            loss = out.sin().sum() + last.cos().sum()
            found.append([out, last, *torch.autograd.grad(loss, [x, *net.parameters()])])
    for got, want in zip(*found, strict=True):
        assert_close(got, want)
