"""Dropout between layers: by which factor, after which layers, for which share, and when."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import elman
from elman import cell
from helpers import need_engine

SIZE, T, B = 7, 20, 30


@cell(input="x[H]", state="h[H]")
def plus_one(x, h):
    """x + 1: what came in can be read off what comes out."""
    return x + 1 + 0 * h


def recurrent(layers: int, p: float, engine: str) -> Any:
    """Layers of one direction that add 1."""
    return elman.Recurrent(plus_one, SIZE, SIZE, layers, dropout=p, engine=engine)


def rnn(layers: int, p: float, engine: str) -> Any:
    """The same as one of torch's classes: relu(x + 0 h + 1)."""
    net = elman.RNN(SIZE, SIZE, layers, nonlinearity="relu", dropout=p, engine=engine)
    for name, weight in net.named_parameters():
        weight.data.zero_()
        if "weight_ih" in name:
            weight.data.copy_(torch.eye(SIZE))
        elif "bias_ih" in name:
            weight.data.fill_(1.0)
    return net


every_net = pytest.mark.parametrize("net", [recurrent, rnn], ids=lambda net: net.__name__)
engines = pytest.mark.parametrize("engine", ["reference", "c"])


@engines
@every_net
@pytest.mark.parametrize("p", [0.2, 0.5, 0.75])
def test_scale_and_place(net, engine, p):
    """After each layer but the last what is kept is multiplied by s = 1 / (1 - p).

    Of x = 1, three layers make 2; 0 or 2 s, plus 1; 0 or s times that, plus 1. A factor or a place
    that is another one gives other numbers.
    """
    need_engine(engine)
    torch.manual_seed(0)
    made, s = net(3, p, engine), 1 / (1 - p)
    x = torch.ones(T, B, SIZE, requires_grad=True)
    out, _ = made(x)
    (dx,) = torch.autograd.grad(out.sum(), x)
    values = torch.tensor([1.0, 1 + s, 1 + s + 2 * s * s])
    nearest = (out.detach()[..., None] - values).abs().argmin(-1)
    torch.testing.assert_close(out.detach(), values[nearest])
    torch.testing.assert_close(dx, torch.where(nearest == 2, s * s, 0.0))

    shares = [p, (1 - p) * p, (1 - p) ** 2]  # dropped last; only before; never
    for k, share in enumerate(shares):
        broadcast = math.sqrt(share * (1 - share) / x.numel())
        assert abs((nearest == k).double().mean().item() - share) < 5 * broadcast, k


@engines
@every_net
def test_in_training_only(net, engine):
    """In evaluation nothing is dropped or scaled, and no random number is drawn."""
    need_engine(engine)
    made = net(3, 0.5, engine).eval()
    before = torch.get_rng_state()
    assert (made(torch.ones(T, B, SIZE))[0] == 4).all()
    assert torch.equal(torch.get_rng_state(), before)


@engines
@every_net
def test_all_is_dropped(net, engine):
    """p = 1: zeros between layers, none of them infinite; the last layer's output is whole."""
    need_engine(engine)
    assert (net(3, 1.0, engine)(torch.ones(T, B, SIZE))[0] == 1).all()
