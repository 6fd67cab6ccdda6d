"""Weight gradients of engine c: units and rows on both sides of what a tile or a block takes."""

from __future__ import annotations

import pytest
import torch

from calls import call
from elman import cell, cells
from elman.engines.c.compilation.isa import detect
from elman.engines.c.products.tiles import WIDEST, tile_rows
from elman.ops import sqrt, sum, tanh
from elman.plan.schedule import Blocks
from helpers import Sizes, assert_all_same, oracle, random_case
from kernels import c_kernel, scheduled

TILE = tile_rows(detect(), WIDEST)
ROWS = Blocks().k


def agree(of, sizes: Sizes, monkeypatch, repeats: int = 1) -> None:
    """By one worker, and by two that share units."""
    case = random_case(of, sizes, 0, torch.float64)
    kernel, want = c_kernel(case), oracle(case)
    for schedule in (("one", 1, 100), *[("units", 2, 100)] * repeats):
        with monkeypatch.context() as patch:
            scheduled(patch, kernel, *schedule)
            assert_all_same(call(kernel, case), want, torch.float64, case.T)


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
def test_around_tiles_and_blocks(units: int, batch: int, steps: int, monkeypatch):
    """One unit or row more or less."""
    agree(cells.rnn, Sizes(steps, batch, 6, units), monkeypatch)


@cell(input="x[H]", state="h[H], s[H]", weights="W[H, H], R[H, H]")
def twice(x, h, s, W, R):
    """Both matrices are used twice, so each gradient is the sum of two."""
    a = tanh(W @ x + R @ h)
    return a, tanh(W @ (x * x) + R @ s + a)


@cell(input="x[I]", state="h[H]", weights="w[H], W[H, H], U[H, I]")
def normalised(x, h, w, W, U):
    """A matrix divided by a norm of weights alone, whose gradient is a sum over all its rows."""
    v = W @ w
    return tanh((W / sqrt(1 + sum(v * v))) @ h + U @ x)


def test_a_sum_over_a_matrix_of_weights(monkeypatch):
    """Of as many rows as it has."""
    for units in (1, 5, 2 * detect().lanes("float64")):
        agree(normalised, Sizes(3, 2, 4, units), monkeypatch)


def test_several_terms_of_one_sum(monkeypatch):
    """Who adds one term adds the others: no two workers write to the same rows."""
    agree(twice, Sizes(4, 9, 200, 200), monkeypatch, repeats=5)
