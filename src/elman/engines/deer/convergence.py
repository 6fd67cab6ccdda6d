"""When a trajectory is accepted: its residual over all steps, and a sequential run of some of
them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elman.engines.deer.equations import Equations, Trajectory, before_window, largest, windows

WINDOWS, WINDOW = 4, 16  # sampled windows, and their steps at most


@dataclass(frozen=True)
class Tolerance:
    """Tolerances of a trajectory, relative to its largest state (at least 1).

    Attributes:
        residual: largest |y[t] - f(y[t-1], x[t])| of all steps.
        agreement: largest distance from a sequential run, times the root of its steps.
    """

    residual: float
    agreement: float


TOLERANCES = {
    torch.float32: Tolerance(2e-6, 1e-5),
    torch.float64: Tolerance(1e-13, 1e-11),
}


def residual(equations: Equations, y: Trajectory, budget: int) -> float:
    """Largest |y[t] - f(y[t-1], x[t])| as a share of the largest state (at least 1), or NaN.

    Args:
        equations, y: what is judged.
        budget: as of the solver: its windows bound the memory here too (bytes).
    """
    worst = 0.0
    for rows in windows(equations, budget):
        if equations.iterations is not None:
            off = equations.iterations.residual(y, rows)
        else:
            values = equations.values(before_window(equations.start, y, rows), rows)
            off = largest([a[rows] - b for a, b in zip(y, values, strict=True)])
        if math.isnan(off):
            return off
        worst = max(worst, off)
    return worst / max(1.0, largest(y))


def disagreement(equations: Equations, y: Trajectory) -> float:
    """Largest distance of some windows from a sequential run, over the root of their steps.

    Windows begin at the trajectory's own state: at the first step, at the last, and in between.
    """
    length = min(WINDOW, equations.steps)
    last = equations.steps - length
    starts = sorted({round(last * k / (WINDOWS - 1)) for k in range(WINDOWS)})
    if equations.iterations is not None:
        worst = equations.iterations.strayed(y, starts, length)
    else:
        worst = _strayed(equations, y, starts, length)
    return worst / (math.sqrt(length) * max(1.0, largest(y)))


def _strayed(equations: Equations, y: Trajectory, starts: Sequence[int], length: int) -> float:
    """Largest distance of a trajectory from windows that begin at its own states; or NaN."""
    rows = torch.tensor(starts, device=equations.device)
    states = tuple(
        torch.cat((first.unsqueeze(0), part))[rows]
        for first, part in zip(equations.start, y, strict=True)
    )
    worst = 0.0
    for _ in range(length):
        states = equations.values(states, rows)
        off = largest([a - part[rows] for a, part in zip(states, y, strict=True)])
        worst = off if math.isnan(off) else max(worst, off)
        if math.isnan(worst):
            break
        rows = rows + 1
    return worst


def refusal(equations: Equations, y: Trajectory, dtype: torch.dtype, budget: int) -> str | None:
    """Why a trajectory is not accepted, or None."""
    demanded = TOLERANCES[dtype]
    error = residual(equations, y, budget)
    if not error <= demanded.residual:
        return f"residual {error:.2g} (at most {demanded.residual:.2g})"
    error = disagreement(equations, y)
    if not error <= demanded.agreement:
        return f"{error:.2g} off a sequential run (at most {demanded.agreement:.2g})"
    return None


def finite(tensors: Sequence[Tensor]) -> bool:
    """Whether there is neither a NaN nor an infinity."""
    return all(bool(value.isfinite().all()) for value in tensors)
