"""Options that change how any cell's states are read and written, against loops written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import elman
from elman import cells
from elman.errors import InputError
from helpers import assert_close

I, H, LIMIT = 5, 7, 0.02


def gradients(out: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(out.sin().sum() * 3, leaves))


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
