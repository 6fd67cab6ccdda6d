"""Heads: dense weights with zeros outside the blocks give the same; shapes, errors, engines."""

from __future__ import annotations

import pytest
import torch

import elman
from elman import cells, compiler
from elman.autodiff.structure import structure
from elman.engines.deer.problem import Formula
from elman.errors import EngineError, InputError, ShapeError
from helpers import Sizes, job_of, random_case


@elman.cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], Q[2H, H], M[H, H]")
def time_reversed(x, h, W, R, Q, M):
    """Transposed weights, alone and within a product of weights."""
    both = elman.ops.concat(h, 0.5 * elman.ops.tanh(h))
    return elman.ops.tanh(W @ x + R.T @ h + 0.5 * (Q.T @ both) + (R.T * M) @ h)


@elman.cell(input="x[H]", state="h[H]", weights="W[2H, H], U[H, H]")
def tied(x, h, W, U):
    """One weight for input and state, one for the input, which is divided as the state is."""
    a, b = elman.ops.split(W @ x + W @ h, "H, H")
    return elman.ops.tanh(a) * elman.ops.sigmoid(b) + U @ x


@elman.cell(input="x[I]", state="h[12]", weights="W[24, I], R[24, 12], b[12]")
def numbered(x, h, W, R, b):
    """Its units are a number, its gates parts of one."""
    n, z = elman.ops.split(W @ x + R @ h, 2)
    z = elman.ops.sigmoid(z)
    return z * h + (1 - z) * elman.ops.tanh(n + b)


def test_structure():
    """Each head is a block of its own, where a norm couples its units too."""
    step = compiler.pair_of(cells.gru.with_heads(4)).step
    assert structure(step).groups == ((0,), (1,), (2,), (3,))
    (bundle,) = Formula(
        job_of(random_case(cells.gru.with_heads(4), Sizes(T=2, B=1, I=3, H=20)))
    ).state_groups
    assert (len(bundle.groups), bundle.rows) == (4, 5)
    step = compiler.pair_of(cells.lstm_layernorm.with_heads(2)).step
    assert len(structure(step).groups) == 2


@elman.cell(input="x[I]", state="h[P], c[H]", weights="W[H, I], R[H, P], Q[P, H]")
def projected(x, h, c, W, R, Q):
    """Its output has a size of its own."""
    c = elman.ops.tanh(W @ x + R @ h) + 0.5 * c
    return Q @ c, c


@elman.cell(input="x[I]", state="h[H]", weights="W[H, I+H]")
def joined(x, h, W):
    """One weight for both at once."""
    return elman.ops.tanh(W @ elman.ops.concat(x, h))


def test_recurrent():
    """Any cell; further dims are divided too."""
    net = elman.Recurrent(projected, 5, 6, H=12, heads=3, num_layers=2)
    assert net.R_l0.shape == (12, 2)
    assert net.Q_l0.shape == (6, 4)
    out, (h, c) = net(torch.randn(4, 2, 5))
    assert (out.shape, h.shape, c.shape) == ((4, 2, 6), (2, 2, 6), (2, 2, 12))
    assert elman.Recurrent(cells.indrnn, 5, 6, heads=4).cell is cells.indrnn


def test_one_head_divides_nothing():
    """The default refuses no cell, whatever heads could divide of it; 5 units have no halves."""
    for cell, size in ((time_reversed, 5), (tied, 5), (numbered, 12)):
        assert cell.with_heads(1) is cell
        assert elman.Recurrent(cell, size, size)(torch.randn(2, 3, size))[0].shape[-1] == size


def test_heads_that_are_the_cell_itself():
    """What an engine may run head by head: names alone, and random numbers of no head's own."""
    sizes = Sizes(T=2, B=1, I=12, H=12)
    for cell, alone in (
        (time_reversed, True),
        (tied, True),
        (numbered, False),
        (cells.lstm_layernorm, True),
        (cells.zoneout_lstm_layernorm, False),
    ):
        job = job_of(random_case(cell.with_heads(3), sizes))
        assert (job.single is not None) == alone, cell.name


def test_refusals():
    """What cannot be divided is said where it is asked for."""
    for cell, size, heads, match in (
        (numbered, 12, 5, "numbered: a dim of 12 cannot be divided among 5 heads"),
        (tied, 7, 2, "hidden_size=7 cannot be divided among 2 heads"),
        (cells.gru, 7, 2, "hidden_size=7 cannot be divided among 2 heads"),
    ):
        with pytest.raises(ShapeError, match=match):
            elman.Recurrent(cell, size, size, heads=heads)
    with pytest.raises(
        ShapeError, match=r"input_size=5 cannot .* 2 heads, and joined divides x: its units"
    ):
        elman.Recurrent(joined, 5, 6, heads=2)
    with pytest.raises(ShapeError, match="H=5 cannot be divided"):
        elman.Recurrent(projected, 3, 4, H=5, heads=2)
    with pytest.raises(ShapeError, match="divided among 5 heads"):
        elman.GRU(3, 12, heads=5)
    with pytest.raises(InputError, match="heads must be at least 1"):
        elman.GRU(3, 12, heads=0)
    with pytest.raises(InputError, match="proj_size"):
        elman.LSTM(3, 12, proj_size=4, heads=2)
    with pytest.raises(EngineError, match=r"2 heads: dtype torch\.bfloat16"):
        elman.GRU(3, 12, heads=2, engine="c", dtype=torch.bfloat16)(torch.randn(2, 2, 3).bfloat16())
