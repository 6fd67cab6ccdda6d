"""Models that do more than compute, compiled and exported: they keep states, count, print, and
write to results in place."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elman
from elman import cells
from helpers import assert_close


class Keeping(nn.Module):
    """A layer, and what a model does with its results."""

    def __init__(self, rnn: Any, effect: str) -> None:
        super().__init__()
        self.rnn, self.effect = rnn, effect
        self.register_buffer("seen", torch.zeros(1, 2, 4))
        self.state: Any = None
        self.log: list[Tensor] = []
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        out, state = self.rnn(x, self.state)
        last = state[0] if isinstance(state, tuple) else state
        if self.effect == "state":
            self.state = (
                tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()
            )
        elif self.effect == "buffer":
            self.seen.copy_(last.detach())
        elif self.effect == "buffer assigned":
            self.seen = last.detach()
        elif self.effect == "list":
            self.log.append(out.detach().mean())
        elif self.effect == "count":
            self.calls += 1
            out = out * self.calls
        elif self.effect == "print":
            print(self.calls)  # noqa: T201
        elif self.effect == "value":
            out = out * (2 if out.sum().item() > 0 else 1)
        elif self.effect == "last in place":
            last.mul_(0.5)
        elif self.effect == "in place":
            out[0].zero_()
            out = nn.functional.relu(out.mul_(2).add_(1), inplace=True)
        return out.sin().sum() + last.sum()


EFFECTS = ("state", "buffer", "buffer assigned", "list", "count", "print", "value", "last in place")
# a tensor that is computed before a break of the graph: the compiler looks at its gradient
quiet = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
LAYERS = {
    "gru": lambda: elman.GRU(3, 4),
    "lstm": lambda: elman.LSTM(3, 4),
    "recurrent": lambda: elman.Recurrent(cells.gru, 3, 4),
}


def some(cases: Any, *slow: str) -> list[Any]:
    """Each takes seconds: a few are slow, the others long."""
    return [
        pytest.param(c, marks=getattr(pytest.mark, "slow" if c in slow else "long")) for c in cases
    ]


each_layer = pytest.mark.parametrize("layer", some(LAYERS, "gru"))


def results(model: Any, run: Any, x: Tensor) -> list[Tensor]:
    """Of three calls: losses and gradients, and what is kept."""
    found: list[Tensor] = []
    for _ in range(3):
        leaf = x.clone().requires_grad_()
        loss = run(leaf)
        found += [loss, *torch.autograd.grad(loss, [leaf, *model.parameters()])]
    kept = model.state if isinstance(model.state, tuple) else (model.state,)
    return [*found, model.seen.clone(), *model.log, *(s for s in kept if s is not None)]


@quiet
@each_layer
@pytest.mark.parametrize("effect", some(EFFECTS, "state", "value"))
def test_compiled(layer, effect):
    """As without the compiler."""
    torch.manual_seed(0)
    model, x = Keeping(LAYERS[layer](), effect), torch.randn(5, 2, 3)
    other = copy.deepcopy(model)
    got = results(other, torch.compile(other, backend="aot_eager"), x)
    for a, b in zip(got, results(model, model, x), strict=True):
        assert_close(a, b)
    assert other.calls == model.calls


@quiet
@each_layer
def test_output_in_place(layer):
    """The backward reads the output: torch says so, and a compiled model has copied it."""
    torch.manual_seed(0)
    model, x = Keeping(LAYERS[layer](), "in place"), torch.randn(5, 2, 3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        results(model, model, x)
    got = results(model, torch.compile(model, backend="aot_eager"), x)
    model.rnn.register_forward_hook(lambda _, __, made: (made[0].clone(), made[1]))
    for a, b in zip(got, results(model, model, x), strict=True):
        assert_close(a, b)


@each_layer
@pytest.mark.parametrize(
    "effect", some(["buffer", "buffer assigned", "last in place", "in place"], "buffer")
)
def test_exported(layer, effect):
    """Buffers are written by the exported program, too."""
    torch.manual_seed(0)
    model, x = Keeping(LAYERS[layer](), effect).eval(), torch.randn(5, 2, 3)
    with torch.no_grad():
        program: Any = torch.export.export(model, (x,)).module()
        model.seen.zero_()
        assert_close(program(x), model(x))
    assert_close(program.seen, model.seen)
