"""Layers and directions as one kernel: the same numbers one after another and at once."""

from __future__ import annotations

import copy
import pickle
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import elman
import elman.nn
from elman import cells
from elman.engines.base import Arrangement, Kernel
from elman.engines.c.run.launches import ConcurrentLaunches
from elman.engines.c.run.prepared import PreparedKernel
from elman.engines.c.run.together import Teams
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.together import Together
from elman.tuning import decisions, together
from helpers import DIFFERENCES, assert_close, assert_same, forced, need_engine
from products import some_of


def results(net, x, state, engine, dy, ends):
    """Output, last states and every gradient by name."""
    x = x.clone().requires_grad_(x.requires_grad)
    start = tuple(part.clone().requires_grad_() for part in state)
    with forced(engine):
        out, last = net(x, start if len(start) > 1 else start[0])
    last = last if isinstance(last, tuple) else (last,)
    loss = (out * dy).sum() + sum((a * b).sum() for a, b in zip(last, ends))
    named = {"x": x, **{f"state {k}": v for k, v in enumerate(start)}}
    named |= dict(net.named_parameters())
    wanted = {name: value for name, value in named.items() if value.requires_grad}
    grads = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    values = {"out": out, **{f"last {k}": v for k, v in enumerate(last)}}
    return values, dict(zip(wanted, grads, strict=True))


def same(got, want):
    T = len(want[0]["out"])
    for name, value in want[0].items():
        assert_same(name, got[0][name], value, torch.float64, T)
    for name, value in want[1].items():
        found = got[1][name]
        if value is None:
            assert found is None or not found.count_nonzero(), name
        else:
            assert_same(f"d{name}", found, value, torch.float64, T)


@pytest.fixture(params=[together.APART, together.AT_ONCE])
def schedule(request, monkeypatch):
    """Every group runs like this, whatever would be faster."""
    need_engine("c")
    real = together.choose_together

    def pinned(*given):
        return real(*given[:-1], request.param)

    monkeypatch.setattr("elman.nn.execute.group.choose_together", pinned)
    monkeypatch.setattr("elman.engines.c.engine._PRUNE_RATIO", 1e9)
    monkeypatch.setattr("elman.engines.c.engine.threads", lambda: 2)
    return request.param


@pytest.mark.parametrize(
    "cell, sizes",
    some_of(["gru", "lstm", "rnn", "lem"], [(2, 1), (3, 1), (1, 2), (2, 2)], together=1),
)
def test_agreement(schedule, cell, sizes):
    """Outputs, last states and all gradients are the reference's."""
    layers, directions = sizes
    torch.manual_seed(0)
    options = {"num_layers": layers, "bidirectional": directions == 2, "dtype": torch.float64}
    net = elman.Recurrent(getattr(cells, cell), 5, 7, **options)
    states = len(net.cell.states)
    for T, B in ((1, 1), (9, 3), (33, 1), (150, 17)):
        x = torch.randn(T, B, 5, dtype=torch.float64, requires_grad=True)
        state = torch.randn(states, layers * directions, B, 7, dtype=torch.float64).unbind(0)
        dy = torch.randn(T, B, 7 * directions, dtype=torch.float64)
        ends = [torch.randn_like(part) for part in state]
        want = results(net, x, state, "reference", dy, ends)
        same(results(net, x, state, "c", dy, ends), want)
    kinds = {choice.schedule for g in net.stack.groups.values() for choice in g.choices.values()}
    assert schedule in kinds


@settings(deadline=None, max_examples=6)
@given(data=st.data())
def test_frozen_layers(data):
    """Whatever is frozen gets no gradient, and everything else the right one."""
    need_engine("c")
    torch.manual_seed(1)
    directions = data.draw(st.integers(1, 2))
    net = elman.Recurrent(
        cells.gru, 3, 5, num_layers=3, bidirectional=directions == 2, dtype=torch.float64
    )
    for suffix in net.runners:
        trained = data.draw(st.booleans())
        for name, value in net.named_parameters():
            if name.endswith(f"_{suffix}"):
                value.requires_grad_(trained)
    needs = data.draw(st.booleans())
    x = torch.randn(6, 2, 3, dtype=torch.float64, requires_grad=needs)
    state = (torch.randn(3 * directions, 2, 5, dtype=torch.float64),)
    dy = torch.randn(6, 2, 5 * directions, dtype=torch.float64)
    ends = [torch.randn_like(state[0])]
    want = results(net, x, state, "reference", dy, ends)
    same(results(net, x, state, "c", dy, ends), want)


def test_further_inputs_go_to_all_layers(schedule):
    """Their gradients are summed over layers and directions."""

    @elman.cell(input="x[I], m", state="h[H]", weights="W[H, I], R[H, H]")
    def gated(x, m, h, W, R):
        return elman.ops.tanh(W @ x + m * (R @ h))

    for directions in (1, 2):
        net = elman.Recurrent(
            gated, 4, 4, num_layers=2, bidirectional=directions == 2, dtype=torch.float64
        )
        x = torch.randn(8, 3, 4, dtype=torch.float64, requires_grad=True)
        m = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
        found = []
        for engine in ("reference", "c"):
            with forced(engine):
                loss = net((x, m))[0].square().sum()
            found.append(torch.autograd.grad(loss, [x, m, *net.parameters()]))
        for a, b in zip(*found):
            assert_close(a, b)


def test_second_backward_and_second_derivative(schedule):
    """A second backward through a graph that is kept, and a second derivative."""
    net = elman.GRU(3, 4, 2, dtype=torch.float64)
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    with elman.using(engine="c"):
        out = net(x)[0].square().sum()
        first = torch.autograd.grad(out, x, retain_graph=True)[0]
        assert torch.equal(first, torch.autograd.grad(out, x)[0])
        assert torch.autograd.gradgradcheck(lambda value: net(value)[0], (x,), atol=DIFFERENCES)


def test_copies_choose_anew(schedule):
    """deepcopy and pickle."""
    net = elman.LSTM(3, 4, 2, bidirectional=True)
    x = torch.randn(5, 2, 3)
    with elman.using(engine="c"):
        want = net(x)[0]
        for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert not any(group.choices for group in other.stack.groups.values())
            torch.testing.assert_close(other(x)[0], want)


def test_records_are_used_again(schedule):
    """What ran is recorded and pinned, and gives the same bits."""
    torch.manual_seed(0)
    net = elman.GRU(6, 6, 2)
    x = torch.randn(40, 2, 6, requires_grad=True)
    with elman.using(engine="c"):
        first = torch.autograd.grad(net(x)[0].square().sum(), list(net.parameters()))
        record = elman.nn.choices(net)
        assert [r["schedule"] for r in record["layers"].values()] == [schedule]
        again = copy.deepcopy(net)
        assert elman.nn.pin(again, record) == []
        assert elman.nn.choices(again) == record, "kept, though nothing ran yet"
        second = torch.autograd.grad(again(x)[0].square().sum(), list(again.parameters()))
        assert elman.nn.choices(again) == record
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    record["layers"][next(iter(record["layers"]))]["schedule"] = "sideways"
    assert "no such schedule" in elman.nn.pin(again, record)[0]


def test_checkpoints_of_torch(schedule):
    """A forward and its repetition save as many tensors, also in the first call of a kind."""
    net, x = elman.LSTM(6, 6, 2, engine="c"), torch.randn(4, 2, 6, requires_grad=True)
    plain = copy.deepcopy(net)
    plain.engine = "reference"
    for _ in range(3):
        out = checkpoint(lambda x: net(x)[0], x, use_reentrant=False)
        want = plain(x)[0]
        assert_close(out, want)
        got = torch.autograd.grad(out.square().sum(), [x, *net.parameters()])
        gradients = torch.autograd.grad(want.square().sum(), [x, *plain.parameters()])
        for value, gradient in zip(got, gradients, strict=True):
            assert_close(value, gradient)


@pytest.mark.parametrize("num_layers", [2, 3])
@pytest.mark.parametrize("name", ["lru", "gru", "slstm"])
def test_layers_of_one_kernel(schedule, name, num_layers):
    """As many inputs as units, and inputs that need gradients: all layers are calls of one kernel,
    and the output of those below the last is kept for the layer above, be it a state or not."""
    cell = getattr(cells, name)
    net = elman.Recurrent(cell, 8, 8, num_layers=num_layers, dtype=torch.float64, engine="c")
    x = torch.randn(5, 2, 8, dtype=torch.float64, requires_grad=True)
    leaves = [x, *net.parameters()]

    def call():
        out, last = net(x)
        values = [out, *tree_leaves(last)]
        return [*values, *torch.autograd.grad(sum((v**2).sum() for v in values), leaves)]

    with forced("reference"):
        want = call()
    for _ in range(4):  # the first call prepares the others
        for got, value in zip(call(), want, strict=True):
            assert_close(got, value)
    plans = [plan for _, plan in net.runtime.plans._plans.values()]
    usual = [plan._usual_kernel.kernel for plan in plans if plan._usual_kernel is not None]
    assert any(isinstance(kernel, PreparedKernel) for kernel in usual) == (
        schedule == together.APART
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads(threads, monkeypatch):
    """More layers than threads, and a pool that gives fewer than were asked for, do not hang."""
    need_engine("c")
    monkeypatch.setattr("elman.engines.c.engine.threads", lambda: 3)
    monkeypatch.setattr("elman.engines.c.engine._PRUNE_RATIO", 1e9)
    net = elman.RNN(4, 4, 5, dtype=torch.float64)
    x = torch.randn(30, 2, 4, dtype=torch.float64)
    state = (torch.zeros(5, 2, 4, dtype=torch.float64),)
    dy, ends = torch.randn(30, 2, 4, dtype=torch.float64), [torch.randn_like(state[0])]
    want = results(net, x, state, "reference", dy, ends)
    real = together.choose_together
    monkeypatch.setattr(
        "elman.nn.execute.group.choose_together", lambda *a: real(*a[:-1], together.AT_ONCE)
    )
    monkeypatch.setattr("elman.engines.c.run.together.workers", lambda: threads)
    same(results(net, x, state, "c", dy, ends), want)


def test_threads_are_shared_evenly():
    """Threads are shared evenly; calls beyond their number are taken in order."""
    assert Teams.of(2, 2) == Teams(1, 2)
    assert Teams.of(2, 16) == Teams(8, 2)
    assert Teams.of(5, 2) == Teams(1, 2)
    assert Teams.of(3, 8) == Teams(2, 3)


def test_the_choice_is_measured_and_remembered(nothing_known, monkeypatch):
    """A new size bucket measures once; another process would recall it; wrong results never win."""
    need_engine("c")
    monkeypatch.setattr(decisions, "_decided", {})
    monkeypatch.setattr("elman.engines.c.engine.threads", lambda: 2)
    monkeypatch.setattr("elman.engines.c.engine._PRUNE_RATIO", 1e9)
    monkeypatch.setattr("elman.tuning.contest._sample", lambda run: (run(), (1e-3, 0.0))[1])
    x = torch.randn(64, 1, 8)

    def reason():
        net = elman.GRU(8, 8, 2, engine="c")
        net(x)
        (choice,) = net.stack.groups["layers"].choices.values()
        return choice

    assert reason().why == "benchmarked"
    assert reason().why == "remembered"
    monkeypatch.setattr(decisions, "_decided", {})
    monkeypatch.setattr(decisions, "recall", lambda key: {"samples": ["together"]})
    assert reason().why == "benchmarked", "what cannot be true is not believed"
    monkeypatch.undo()
    monkeypatch.setattr(decisions, "_decided", {})
    monkeypatch.setattr("elman.engines.c.engine.threads", lambda: 2)
    monkeypatch.setattr("elman.engines.c.engine._PRUNE_RATIO", 1e9)
    monkeypatch.setattr(decisions, "recall", lambda key: None)
    with torch.no_grad():
        monkeypatch.setattr(ConcurrentLaunches, "run", lambda self: None)
        wrong = reason()
    assert wrong.schedule == together.APART
    assert "does not agree" in wrong.refusals[together.AT_ONCE]


class Counting(Kernel):
    """Hands its input on, and counts in each backward which gradients of inputs are alive."""

    engine = "counting"

    def __init__(self) -> None:
        self.made: list[weakref.ref[torch.Tensor]] = []
        self.alive: list[int] = []

    def forward(self, call: Call) -> Result:
        return Result(call.inputs[0].clone(), call.states, (call.inputs[0],))

    def backward(self, call: Call, saved: Any, cotangents: Cotangents, keep: bool) -> Gradients:
        self.alive.append(sum(one() is not None for one in self.made))
        d = torch.ones_like(call.inputs[0])
        self.made.append(weakref.ref(d))
        return Gradients((d,), (None,), ())


def test_gradients_between_layers_are_let_go():
    """Of the inputs of all layers, only that is held which the layer below reads."""
    kernel, count = Counting(), 5
    stack = Together([kernel] * count, Arrangement((1,) * count, (0,) * count, False))
    call = Call((torch.ones(3, 2, 4),), (torch.ones(2, 4),) * count, ())
    result = stack.forward(call)
    cotangents = Cotangents(torch.ones(3, 2, 4), (None,) * count)
    gradients = stack.backward(call, result.saved, cotangents, False)
    assert kernel.alive == [0, 1, 1, 1, 1]
    assert gradients.inputs[0] is kernel.made[-1]()
