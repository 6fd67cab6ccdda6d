"""Tensors that are saved for a backward: written to in between, kept elsewhere by hooks, and what a
compiler makes of calls after a mode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import allow_mutation_on_saved_tensors, saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import elman
from elman import PlanOptions, cells, functional
from helpers import assert_close, need_engine

Call = Callable[..., tuple[Tensor, ...]]


def copying() -> Any:
    """Hooks that keep a copy."""
    return saved_tensors_hooks(lambda value: value.clone(), lambda value: value)


def recurrent(net: Any, states: int, **options: Tensor) -> tuple[Any, Call, list[Tensor]]:
    def call(x: Tensor, *h: Tensor) -> tuple[Tensor, ...]:
        out, last = net(x, (h if len(h) > 1 else h[0]) if h else None, **options)
        return (out, *(last if isinstance(last, tuple | list) else (last,)))

    lead = net.num_layers * (2 if net.bidirectional else 1)
    return net, call, [torch.randn(5, 2, 3), *(torch.randn(lead, 2, 4) for _ in range(states))]


def decoder(reduction: Any) -> tuple[Any, Call, list[Tensor]]:
    net, targets = elman.LinearCrossEntropyLoss(3, 7, reduction=reduction), torch.arange(10) % 7
    return net, lambda x: (net(x.reshape(-1, 3), targets).reshape(-1),), [torch.randn(5, 2, 3)]


def layer(net: Any) -> tuple[Any, Call, list[Tensor]]:
    return net, lambda x: (net(x)[0],), [torch.randn(5, 2, 16)]


def function() -> tuple[Any, Call, list[Tensor]]:
    q = [torch.randn(2, 5, 2, 4) for _ in range(3)]
    beta = torch.rand(2, 5, 2)
    return nn.Module(), lambda *a: (functional.delta_rule(*a)[0],), [*q, beta]


def scan() -> tuple[Any, Call, list[Tensor]]:
    B = torch.randn(2, 2, 6)
    arguments = [torch.randn(2, 4, 6), torch.rand(2, 4, 6), -torch.rand(4, 2), B, B + 1]
    return nn.Module(), lambda *a: (functional.selective_scan(*a),), arguments


CASES = {
    "gru": lambda: recurrent(elman.GRU(3, 4), 1),
    "rnn": lambda: recurrent(elman.RNN(3, 4, 2), 1),
    "lstm, both directions": lambda: recurrent(elman.LSTM(3, 4, 2, bidirectional=True), 2),
    "reset": lambda: recurrent(elman.GRU(3, 4), 1, reset=(torch.rand(5, 2) < 0.3).float()),
    "mask": lambda: recurrent(elman.GRU(3, 4), 1, mask=(torch.rand(5, 2) < 0.6).float()),
    "lengths": lambda: recurrent(elman.LSTM(3, 4), 2, lengths=torch.tensor([5, 3])),
    "checkpoint": lambda: recurrent(elman.GRU(3, 4, plan=PlanOptions(checkpoint=2)), 1),
    "reference": lambda: recurrent(elman.GRU(3, 4, engine="reference"), 1),
    "recurrent": lambda: recurrent(elman.Recurrent(cells.gru, 3, 4), 1),
    "learned": lambda: recurrent(elman.GRU(3, 4, learn_initial=True), 0),
    "mean loss": lambda: decoder("mean"),
    "losses": lambda: decoder("none"),
    "delta net": lambda: layer(elman.layers.DeltaNet(16, num_heads=2)),
    "lru": lambda: layer(elman.layers.LRU(16)),
    "delta rule": function,
    "scan": scan,
}
QUICK = ("gru", "lstm, both directions", "reset", "mean loss")


def some(cases: Any) -> list[Any]:
    """The rest takes a kernel each."""
    return [
        pytest.param(name, id=name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in cases
    ]


def arguments(net: Any, _: Any, given: Any) -> list[Tensor]:
    return list(given)


def a_row(net: Any, _: Any, given: Any) -> list[Tensor]:
    """At another address than what is saved whole."""
    return [value[1:2] for value in given]


def weights(net: Any, _: Any, given: Any) -> list[Tensor]:
    return list(net.parameters())


def results(net: Any, made: Any, _: Any) -> list[Tensor]:
    return [value for value in made if value.dim()]


def gradients(case: Any, context: Any, change: Any) -> list[Tensor]:
    """Of arguments and weights, with the loss taken before a change."""
    torch.manual_seed(0)
    net, call, values = CASES[case]()
    leaves = [value.clone().requires_grad_() for value in values]
    with context():
        given = [value * 1 for value in leaves]
        made = call(*given)
        loss = sum(value.sin().sum() for value in made)
        if change is not None:
            with torch.no_grad():
                for value in change(net, made, given):
                    value.zero_()
        loss.backward()
    return [w.grad for w in (*leaves, *net.parameters()) if w.grad is not None]


@pytest.mark.parametrize("change", [arguments, a_row, weights, results])
@pytest.mark.parametrize("case", some(CASES))
def test_allow_mutation_on_saved_tensors(case, change):
    """Gradients are those of what was there in the forward, also where a part of it changes."""
    if change is a_row and case in ("delta net", "mask"):
        pytest.skip("torch's own products and masks keep a tensor by its first address")
    want = gradients(case, nullcontext, None)
    for got, value in zip(
        gradients(case, allow_mutation_on_saved_tensors, change), want, strict=True
    ):
        assert_close(got, value)


@pytest.mark.parametrize("change", [arguments, weights])
@pytest.mark.parametrize("case", some(CASES))
def test_hooks_that_copy(case, change):
    """What the hooks kept is what counts."""
    want = gradients(case, nullcontext, None)
    for got, value in zip(gradients(case, copying, change), want, strict=True):
        assert_close(got, value)


@pytest.mark.parametrize("change", [arguments, a_row, weights])
@pytest.mark.parametrize("case", some(CASES))
def test_changes_are_told(case, change):
    """Without such a context torch raises an error, where the gradient needs what has changed."""
    want = gradients(case, nullcontext, None)
    got: list[Tensor] = []
    with suppress(RuntimeError):
        got = gradients(case, nullcontext, change)
    if not got:
        with pytest.raises(RuntimeError, match="modified"):
            gradients(case, nullcontext, change)
        return
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["gru", "mean loss"])
def test_compiled_after_a_mode(case):
    """A compiled model that once ran under a mode is given up by the compiler, which would then
    begin with functions of elman's, with parts of those that pass addresses to C."""
    need_engine("c")
    torch.manual_seed(0)
    net, call, values = CASES[case]()
    compiled = torch.compile(call, backend="eager")
    with FlopCounterMode(display=False):
        compiled(*values)
    for _ in range(3):
        grads = []
        for run in (compiled, call):
            leaves = [value.clone().requires_grad_() for value in values]
            loss = sum(value.sin().sum() for value in run(*leaves))
            grads.append(torch.autograd.grad(loss, [*leaves, *net.parameters()]))
        for got, want in zip(*grads, strict=True):
            assert_close(got, want)
