"""The equations of the solvers: y[t] = f(y[t-1], x[t]) for t = 0 … T-1, y[-1] given."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elman.engines.deer.iterations import Iterations, Trajectory
from elman.engines.deer.scans import Algebra

if TYPE_CHECKING:
    from elman.engines.time_shards import TimeShards

Rows = slice | Tensor


class Equations(ABC):
    """T equations, each of a step and its predecessor.

    Attributes:
        steps: T.
        start: y[-1], an array per bundle.
        algebras: layout of each bundle's Jacobian.
        row_bytes: memory that one step of :meth:`linearised` takes (bytes).
        device: of the arrays.
        iterations: kernels of whole iterations; None if the device has none.
        shards: the processes that share all steps, of which these equations have one process's;
            ``start`` is that of the first process until the states before these steps are known.
    """

    steps: int
    start: Trajectory
    algebras: tuple[Algebra, ...]
    row_bytes: int
    device: torch.device
    iterations: Iterations | None = None
    shards: TimeShards | None = None

    @abstractmethod
    def values(self, before: Trajectory, rows: Rows) -> Trajectory:
        """f of some steps, ``before`` being the states that precede them."""

    @abstractmethod
    def linearised(self, before: Trajectory, rows: Rows) -> tuple[Trajectory, Trajectory]:
        """f of some steps and its Jacobian by the states."""

    def unitwise(self) -> Equations | None:
        """The equations with Jacobians and trajectories in ``Units`` layout, entries between units
        left out; None if that saves nothing."""
        return None

    def repacked(self, y: Trajectory) -> Trajectory:
        """A trajectory of :meth:`unitwise` in the layout of these equations."""
        return y

    def largest_of_all(self, *values: float) -> list[float]:
        """The largest of all processes, number by number."""
        return [*values] if self.shards is None else self.shards.largest(values)


def before(start: Trajectory, y: Trajectory) -> Trajectory:
    """The states that precede each step."""
    return tuple(
        torch.cat((first.unsqueeze(0), part[:-1])) for first, part in zip(start, y, strict=True)
    )


def windows(equations: Equations, budget: int, most: int = 0) -> Iterator[slice]:
    """All steps in windows of at most ``most`` steps (0: any) whose Jacobians fit a budget
    (bytes)."""
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
