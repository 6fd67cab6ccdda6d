"""Weight gradients of engine c: units and rows on both sides of what a tile or a block takes."""

from __future__ import annotations

import pytest
import torch

import elman
from elman import cell
from elman.engines.c.isa import detect
from elman.engines.c.tiles import WIDEST, tile_rows
from elman.ops import tanh
from elman.plan.schedule import Blocks
from helpers import assert_close, need_engine

TILE = tile_rows(detect(), WIDEST)
ROWS = Blocks().k


@pytest.mark.parametrize(
    ("units", "batch", "steps"),
    [
        (TILE - 1, 3, 2),
        (TILE, 1, 5),
        (TILE + 1, 2, 3),
        (512, 2, 3),
        (2 * 16 * TILE - 1, 3, 2),
        (520 + TILE, 2, 2),
        (7, ROWS - 1, 2),
        (TILE + 1, ROWS + 1, 2),
        (5, 2 * ROWS + 3, 1),
    ],
)
def test_around_tiles_and_blocks(units: int, batch: int, steps: int):
    """One unit or row more or less, for one worker and for two."""
    need_engine("c")
    torch.manual_seed(0)
    judge = elman.RNN(6, units, engine="reference", dtype=torch.float64)
    net = elman.RNN(6, units, engine="c", dtype=torch.float64)
    net.load_state_dict(judge.state_dict())
    x, dy = torch.randn(steps, batch, 6).double(), torch.randn(steps, batch, units).double()
    want = torch.autograd.grad(judge(x)[0], [*judge.parameters()], dy)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found = torch.autograd.grad(net(x)[0], [*net.parameters()], dy)
            for a, b in zip(found, want, strict=True):
                assert_close(a, b)
    finally:
        torch.set_num_threads(before)


@cell(input="x[H]", state="h[H], s[H]", weights="W[H, H], R[H, H]")
def twice(x, h, s, W, R):
    """Both matrices are used twice, so each gradient is the sum of two."""
    a = tanh(W @ x + R @ h)
    return a, tanh(W @ (x * x) + R @ s + a)


def test_several_terms_of_one_sum():
    """Who adds one term adds the others: no two workers write to the same rows."""
    need_engine("c")
    torch.manual_seed(0)
    judge = elman.Recurrent(twice, 200, 200, engine="reference", dtype=torch.float64)
    net = elman.Recurrent(twice, 200, 200, engine="c", dtype=torch.float64)
    net.load_state_dict(judge.state_dict())
    x, dy = torch.randn(4, 9, 200).double(), torch.randn(4, 9, 200).double()
    want = torch.autograd.grad(judge(x)[0], [*judge.parameters()], dy)
    for _ in range(5):
        found = torch.autograd.grad(net(x)[0], [*net.parameters()], dy)
        for a, b in zip(found, want, strict=True):
            assert_close(a, b)
