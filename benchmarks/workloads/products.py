"""One product in two layouts: Y = X Wᵀ and Yᵀ = W Xᵀ, both with rows in memory one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

import elman.nn
from benchmarks.cases import Case, Effort, Way
from benchmarks.measures.training import measure_steps
from benchmarks.problem import Contestant, Problem
from benchmarks.rows import Row, study
from benchmarks.workloads.custom_cells import projected

ROWS, COLUMNS = "rows", "columns"  # a sample is a row of X [B, I], or a column of Xᵀ [I, B]
PANELS = "elman-c"  # rows too; W in engine c's panels


def draw_product(case: Case, seed: int = 0) -> Problem:
    """Draw X [B, I] and W [H, I] from N(0, 1)."""
    source = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    x = torch.randn(case.B, case.input_size, dtype=dtype, generator=source)
    W = torch.randn(case.H, case.input_size, dtype=dtype, generator=source)
    return Problem(case, x, x.new_zeros(0), {"W": W}, case.B)


def multiplied(name: str, problem: Problem) -> Contestant:
    """A contestant: torch's product in one of the layouts, or engine c's."""
    return PRODUCTS[name](problem)


def _rows(problem: Problem) -> Contestant:
    x, W = problem.x, problem.weights["W"]
    return _contestant(lambda: F.linear(x, W), lambda y: y)


def _columns(problem: Problem) -> Contestant:
    x, W = problem.x.t().contiguous(), problem.weights["W"]
    return _contestant(lambda: W @ x, lambda y: y.t())


def _contestant(run: Callable[[], Tensor], output: Callable[[Tensor], Tensor]) -> Contestant:
    return Contestant(run, lambda: {"output": output(run())}, (), dict)


def _elman(problem: Problem) -> Contestant:
    """All rows as one time step: its prologue is the product, of weights packed in each call."""
    module = elman.nn.Recurrent(projected, problem.case.input_size, problem.case.H, engine="c")
    module.to(problem.x.dtype).load_state_dict({"W_l0": problem.weights["W"]})
    x = problem.x.unsqueeze(0)

    def run() -> Tensor:
        with torch.no_grad():
            return module(x)[0]

    return _contestant(run, lambda y: y[0])


PRODUCTS: dict[str, Callable[[Problem], Contestant]] = {
    ROWS: _rows,
    COLUMNS: _columns,
    PANELS: _elman,
}


def measure_products(case: Case, effort: Effort) -> Row:
    """Time layouts of a product interleaved, as :func:`measure_steps`, and tell their speeds."""
    row = measure_steps(case, effort)
    speeds = {
        name: row["flop"] / seconds["median"] / 1e9 for name, seconds in row["seconds"].items()
    }
    texts = [f"{name} {speed:.0f}" for name, speed in speeds.items()]
    return study(f"GFLOP/s: {', '.join(texts)}", **row)


PRODUCT = Way("product", measure_products, draw_product, multiplied, backward=False)
