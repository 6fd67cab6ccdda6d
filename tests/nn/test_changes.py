"""Options that change how any cell's states are read and written, against loops written by hand."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elman
from elman import cells
from elman.errors import EngineError, InputError
from elman.ops import tanh
from helpers import assert_close

F64 = torch.float64
I, H, LIMIT = 5, 7, 0.02


@elman.cell(input="x[I]", state="h[H], c[H]", output="y[H]", weights="W[H, I], R[H, H]")
def two(x, h, c, W, R):
    """The states are read twice, and the output is none of them."""
    c = 0.5 * c + W @ x
    return h + c, tanh(c + R @ h) + 0.1 * h, c


def by_hand(net: Any, x: Tensor, limit: float) -> Tensor:
    """Every layer with what flows back into h and c held by hooks, step by step."""
    out = x
    for layer in range(net.num_layers):
        W, R = (getattr(net, f"{name}_l{layer}") for name in "WR")
        h, c = x.new_zeros(2, x.shape[1], H)
        rows = []
        for row in out:
            h, c = h + 0, c + 0  # what this step reads, and nothing else
            for state in (h, c):
                if state.requires_grad:
                    state.register_hook(lambda d: d.clamp(-limit, limit))
            own = 0.5 * c + row @ W.T
            rows.append(h + own)
            h, c = torch.tanh(own + h @ R.T) + 0.1 * h, own
        out = torch.stack(rows)
    return out


def gradients(out: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(out.sin().sum() * 3, leaves))


@pytest.mark.parametrize("engine", ["reference", "auto"])
@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_are_held_in_every_step(layers, engine):
    torch.manual_seed(0)
    net = elman.Recurrent(
        two, I, H, layers, clip_gradient=LIMIT, dtype=F64, engine=engine, checkpoint=None
    )
    x = torch.randn(6, 3, I, dtype=F64, requires_grad=True)
    leaves = [x, *net.parameters()]
    want = by_hand(net, x, LIMIT)
    out, _ = net(x)
    assert_close(out, want)
    wanted = gradients(want, leaves)
    for mine, other in zip(gradients(out, leaves), wanted, strict=True):
        assert_close(mine, other)
    free = gradients(by_hand(net, x, 1e9), leaves)
    assert not torch.allclose(free[0], wanted[0]), "nothing was clipped"


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_drop_ins(kind):
    """The values are torch's; the gradients are not; torch's own engine cannot do it."""
    torch.manual_seed(0)
    net, theirs = getattr(elman, kind)(I, H, clip_gradient=1e-3), getattr(nn, kind)(I, H)
    theirs.load_state_dict(net.state_dict())
    x = torch.randn(6, 3, I, requires_grad=True)
    out, free = net(x)[0], theirs(x)[0]
    assert_close(out, free)
    mine, others = (torch.autograd.grad(v.sum(), x)[0] for v in (out, free))
    assert_close(mine[-1], others[-1])
    assert not torch.allclose(mine[0], others[0])
    with elman.using(engine="reference"):
        assert_close(mine, torch.autograd.grad(net(x)[0].sum(), x)[0])
    with elman.using(engine="aten"), pytest.raises(EngineError, match="aten cannot run"):
        net(x)
    assert "clip_gradient=0.001" in repr(net)


def test_saved_and_compiled():
    """A module keeps its changes in a file, and in a compiled program."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = elman.Recurrent(cells.gru, I, H, clip_gradient=LIMIT, heads=1)
    x = torch.randn(6, 3, I, requires_grad=True)
    want = gradients(net(x)[0], [x])[0]
    assert "clip_gradient=0.02" in repr(net)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert again.cell.changes == net.cell.changes
    assert torch.equal(gradients(again(x)[0], [x])[0], want)
    once = torch.compile(net, fullgraph=True, backend="aot_eager")
    assert_close(gradients(once(x)[0], [x])[0], want)


def test_with_heads():
    """Heads divide the changed cell, in either order of asking."""
    one = cells.gru.with_heads(2)
    net = elman.Recurrent(cells.gru, I, 8, heads=2, clip_gradient=LIMIT)
    assert net.cell.fingerprint == one.with_changes(*net.cell.changes).fingerprint
    assert net.cell.fingerprint != one.fingerprint
    x = torch.randn(4, 2, I, requires_grad=True)
    mine = gradients(net(x)[0], [x])[0]
    with elman.using(engine="reference"):
        assert_close(mine, gradients(net(x)[0], [x])[0])


@pytest.mark.parametrize("limit", [0, -1.0, True, "1", float("nan")])
def test_a_limit_that_is_none(limit):
    with pytest.raises(InputError, match="clip_gradient must be a positive number"):
        elman.Recurrent(cells.gru, I, H, clip_gradient=limit)
    with pytest.raises(InputError, match="clip_gradient must be a positive number"):
        elman.LSTM(I, H, clip_gradient=limit)


def test_explained():
    """The formula is shown with what stands between the steps, told at the cell's line."""
    net = elman.Recurrent(cells.rnn, I, H, clip_gradient=LIMIT)
    text = str(elman.explain(net, torch.randn(4, 2, I), measure=False))
    assert "clip_gradient" in text
    (clipped,) = [v for v in net.cell.graph.walk() if v.op == "clip_gradient"]
    assert clipped.where == cells.rnn.where
