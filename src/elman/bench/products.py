"""One product in two layouts: Y = X Wᵀ and Yᵀ = W Xᵀ, both with rows in memory one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from elman.bench.cases import Case
from elman.bench.contest import Contestant, Problem

ROWS, COLUMNS = "rows", "columns"  # a sample is a row of X [B, I], or a column of Xᵀ [I, B]


def draw_product(case: Case, seed: int = 0) -> Problem:
    """Draw X [B, I] and W [H, I] from N(0, 1)."""
    source = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    x = torch.randn(case.B, case.input_size, dtype=dtype, generator=source)
    W = torch.randn(case.H, case.input_size, dtype=dtype, generator=source)
    return Problem(case, x, x.new_zeros(0), {"W": W}, case.B)


def multiplied(name: str, problem: Problem) -> Contestant:
    """A contestant: torch's product in one of the layouts."""
    return PRODUCTS[name](problem)


def _rows(problem: Problem) -> Contestant:
    x, W = problem.x, problem.weights["W"]
    return _contestant(lambda: F.linear(x, W), lambda y: y)


def _columns(problem: Problem) -> Contestant:
    x, W = problem.x.t().contiguous(), problem.weights["W"]
    return _contestant(lambda: W @ x, lambda y: y.t())


def _contestant(run: Callable[[], Tensor], output: Callable[[Tensor], Tensor]) -> Contestant:
    return Contestant(run, lambda: {"output": output(run())}, (), dict)


PRODUCTS: dict[str, Callable[[Problem], Contestant]] = {ROWS: _rows, COLUMNS: _columns}
