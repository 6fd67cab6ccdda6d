"""What the solvers solve: y[t] = f(y[t-1], x[t]) for t = 0 … T-1, y[-1] given."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from elman.engines.deer.scans import Algebra

Rows = slice | Tensor
Trajectory = tuple[Tensor, ...]  # one array per bundle of states, steps first


class ByKernels(Protocol):
    """Equations solved by kernels: see ``iterations.Iterations``."""

    def improved(self, y: Trajectory, start: Trajectory, rows: slice) -> tuple[Trajectory, float]:
        """One iteration on some steps, and the residual of the given iterate."""
        ...

    def residual(self, y: Trajectory, rows: slice) -> float:
        """The largest residual of some steps."""
        ...

    def strayed(self, y: Trajectory, starts: Sequence[int], length: int) -> float:
        """The largest distance from windows that are run sequentially."""
        ...


class Equations(Protocol):
    """T equations whose left sides are known functions of the step before.

    Attributes:
        steps: T.
        start: y[-1], an array per bundle.
        algebras: how each bundle's Jacobian is laid out.
        row_bytes: memory that one step of :meth:`linearised` takes (bytes).
    """

    steps: int
    start: Trajectory
    algebras: tuple[Algebra, ...]
    row_bytes: int

    @property
    def device(self) -> torch.device:
        """Where the arrays are."""
        ...

    @property
    def iterations(self) -> ByKernels | None:
        """Kernels of whole iterations, where a device has them."""
        ...

    def values(self, before: Trajectory, rows: Rows) -> Trajectory:
        """f of some steps, ``before`` being the states that precede them."""
        ...

    def linearised(self, before: Trajectory, rows: Rows) -> tuple[Trajectory, Trajectory]:
        """f of some steps and its Jacobian by the states."""
        ...

    def unitwise(self) -> Equations | None:
        """The same equations with Jacobians in which no unit reaches another, trajectories laid out
        as those want them; None where that saves nothing."""
        ...

    def repacked(self, y: Trajectory) -> Trajectory:
        """A trajectory of :meth:`unitwise` as these equations lay it out."""
        ...


def before(start: Trajectory, y: Trajectory) -> Trajectory:
    """The states that precede each step."""
    return tuple(
        torch.cat((first.unsqueeze(0), part[:-1])) for first, part in zip(start, y, strict=True)
    )


def windows(equations: Equations, budget: int, most: int = 0) -> Iterator[slice]:
    """All steps in windows whose Jacobians fit a budget (bytes), of so many steps at most."""
    fits = max(1, budget // max(1, equations.row_bytes))
    size = min(most or equations.steps, fits)
    for first in range(0, equations.steps, size):
        yield slice(first, min(first + size, equations.steps))


def before_window(start: Trajectory, y: Trajectory, rows: slice) -> Trajectory:
    """The states that precede each step of a window."""
    if rows.start == 0:
        return before(start, tuple(part[rows] for part in y))
    return tuple(part[rows.start - 1 : rows.stop - 1] for part in y)


def largest(tensors: Sequence[Tensor]) -> float:
    """The largest absolute value; NaN if there is one."""
    maxima = [float(tensor.abs().max()) for tensor in tensors if tensor.numel()]
    return math.nan if any(map(math.isnan, maxima)) else max(maxima, default=0.0)
