"""Several outputs of a cell, and the states behind every step, against loops written by hand."""

from __future__ import annotations

import pytest
import torch

import elman
import elman.nn
from elman import cells
from elman.errors import EngineError, InputError
from elman.ops import mean, tanh
from helpers import assert_close

F64 = torch.float64
I, H = 5, 7  # P = I: layers can be stacked, and residual


def test_results_can_be_changed_in_place():
    """They lie side by side in one array, but are no views that torch protects."""
    net, x = elman.LSTM(I, H, dtype=F64), torch.randn(6, 3, I, dtype=F64, requires_grad=True)
    (_, (h, c), _), (_, (same_h, same_c), _) = (net(x, outputs="states") for _ in range(2))
    for value in (h, c):
        value.mul_(2)
    assert_close(c, 2 * same_c)
    mine, theirs = (
        torch.autograd.grad(loss, x)[0] for loss in ((h + c).sum(), 2 * (same_h + same_c).sum())
    )
    assert_close(mine, theirs)


def test_engines_that_have_no_states_to_hand_out():
    """torch's own LSTM has no c of every step, and says so; its RNN and GRU have all there is."""
    x = torch.randn(4, 2, I)
    with pytest.raises(EngineError, match=r'with outputs="states"'):
        elman.LSTM(I, H, engine="aten")(x, outputs="states")
    out, states, _ = elman.GRU(I, H, engine="aten")(x, outputs="states")
    assert states is out
    with elman.using(engine="c"):
        torch.manual_seed(0)
        assert elman.LSTM(I, H)(x, outputs="states")[1][1].shape == (4, 2, H)


def test_projected_states():
    """h is the projection, c is as wide as the cell."""
    net = elman.LSTM(I, H, proj_size=3)
    out, (h, c), _ = net(torch.randn(4, 2, I), outputs="states")
    assert out.shape == h.shape == (4, 2, 3)
    assert c.shape == (4, 2, H)


def test_a_name_that_is_none():
    with pytest.raises(InputError, match="outputs must be None or \"states\", got 'state'") as told:
        elman.GRU(I, H)(torch.randn(4, 2, I), outputs="state")
    assert 'net(x, outputs="states")' in str(told.value)


def test_first_outputs_that_are_scalars():
    """A layer above has to read a vector; one layer, or two directions, do not."""

    @elman.cell(input="x[I]", state="h[H]", output="e, y[H]", weights="W[H, I], R[H, H]")
    def scalar_first(x, h, W, R):
        h = tanh(W @ x + R @ h)
        return mean(h), 2 * h, h

    x = torch.randn(4, 2, I)
    (e, y), h = elman.Recurrent(scalar_first, I, H)(x)
    assert e.shape == (4, 2)
    assert y.shape == (4, 2, H)
    assert_close(y[-1] / 2, h[-1])
    with pytest.raises(InputError, match="scalar_first has a scalar output"):
        elman.Recurrent(scalar_first, I, H, 2)


def test_shown_by_name():
    """explain and draw say which output is which; one that is a state has the state's name."""

    @elman.cell(input="x[I]", state="h[H]", output="y[P], e, k[H]", weights="W[H, I], C[P, H]")
    def shown(x, h, W, C):
        h = tanh(W @ x + h)
        return C @ h, mean(h * h), h, h

    text = str(elman.explain(shown, input_size=4, hidden_size=6, P=3, measure=False))
    for part in ("next: h′, y = C @ h′, e = mean", "k = h′", "output: y, e, h′", "∂C += dout.y ⊗"):
        assert part in text, part
    assert "dout.k" in text
    svg = elman.draw(shown, P=3).svg
    for part in ("out.y", "out.e", "dout.y", "dout.k"):
        assert part in svg, part


def test_arguments_that_stand_elsewhere():
    """What belongs to a call is told so where a module is made."""
    for name in ("outputs", "reset", "lengths"):
        with pytest.raises(InputError, match=f"{name} is an argument of each call") as told:
            elman.Recurrent(cells.gru, I, H, **{name: None})
        assert f"net(x, {name}=…)" in str(told.value)
