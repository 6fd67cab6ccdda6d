"""docs/elman_in_200_lines.py: no longer than it says, and right."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from helpers import need_engine
from scripts import module_of

FILE = Path(__file__).parents[1] / "docs" / "elman_in_200_lines.py"
T, B, H, I = 7, 3, 5, 4
BLOCKS = ("r", "z", "n")
DIMS = {f"{w}{g}": dim for w, dim in (("W", "H I"), ("R", "H H")) for g in BLOCKS}
DIMS |= {"br": "H", "bz": "H", "bn": "H", "cn": "H"}


@pytest.fixture(scope="module")
def mini() -> ModuleType:
    """The file as a module."""
    need_engine("c")
    return module_of(FILE)


def test_is_as_short_as_it_says():
    """An evening's reading."""
    assert len(FILE.read_text("utf-8").splitlines()) <= 200


def test_agrees_with_torch(mini):
    """A GRU's states, and the gradients of x, the initial state and every weight."""
    torch.manual_seed(0)
    theirs = torch.nn.GRU(I, H, dtype=torch.float64)
    W, R, b, c = (p.detach().chunk(3) for p in theirs.parameters())
    leaves = [torch.randn(T, B, I), torch.randn(B, H)]
    leaves = [leaf.double().requires_grad_() for leaf in leaves]
    weights = [*W, *R, b[0] + c[0], b[1] + c[1], b[2], c[2]]
    weights = [weight.clone().requires_grad_() for weight in weights]
    cell = mini.Cell(mini.gru, {"H": H, "I": I}, **DIMS)
    ours = mini.Run.apply(cell, *leaves, *weights)
    expected, _ = theirs(leaves[0], leaves[1][None])
    torch.testing.assert_close(ours, expected)

    dy = torch.randn_like(ours)
    found = torch.autograd.grad(ours, [*leaves, *weights], dy)
    wanted = torch.autograd.grad(expected, [*leaves, *theirs.parameters()], dy)
    dW, dR, db, dc = (d.chunk(3) for d in wanted[2:])
    for mine, right in zip(found, [*wanted[:2], *dW, *dR, *db, dc[2]], strict=True):
        torch.testing.assert_close(mine, right)


def test_any_formula(mini):
    """One that torch does not have, by finite differences; what is cheap is not on its tape."""

    def light(x, h, W, R, V, b):
        z = mini.sigmoid(W @ x + b)
        return z * h + (1 - z) * mini.tanh(V @ x + R @ (z * h * h)) * 2

    dims = {"W": "H I", "R": "H H", "V": "H I", "b": "H"}
    cell = mini.Cell(light, {"H": H, "I": I}, **dims)
    assert sorted(value.op for value in cell.tape) == ["sigmoid", "tanh"]
    sizes = [(T, B, I), (B, H), (H, I), (H, H), (H, I), (H,)]
    given = [torch.randn(size, dtype=torch.float64).requires_grad_() for size in sizes]
    assert torch.autograd.gradcheck(lambda *given: mini.Run.apply(cell, *given), given)
