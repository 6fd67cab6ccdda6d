"""Newton iterations, residuals and convergence checks by the kernels of a device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from elman.engines.deer.equations import Rows, Trajectory
from elman.engines.deer.scans import Units
from elman.ir.graph import Node

if TYPE_CHECKING:
    from elman.engines.deer.problem import Problem


class Iterations:
    """Kernels applied to the equations of one call.

    Args:
        problem: the equations.
        kernels: one for each of its bundles of states, as of ``elman.engines.triton.newton``.
    """

    def __init__(self, problem: Problem, kernels: Sequence[Any]) -> None:
        self._problem, self._kernels = problem, kernels
        self._read_rows: tuple[tuple[int, int], list[tuple[Tensor, Tensor]]] | None = None

    def improved(self, y: Trajectory, start: Trajectory, rows: slice) -> tuple[Trajectory, float]:
        """One Newton iteration on some steps: the next iterate, and the residual of the given one
        relative to its largest value (at least 1)."""
        operands = self._rows_read(rows)
        iterates = [
            kernel.improved(part, first, *read)
            for kernel, part, first, read in zip(self._kernels, y, start, operands, strict=True)
        ]
        worst, largest = torch.stack([off for _, off in iterates]).amax(0).tolist()
        off = worst / max(1.0, largest) if math.isfinite(worst) else math.inf
        return tuple(iterate for iterate, _ in iterates), off

    def residual(self, y: Trajectory, rows: slice) -> float:
        """Largest |y[t] - f(y[t-1], x[t])| of some steps of a trajectory; infinite for a NaN."""
        first = tuple(part[rows.start - 1] for part in y) if rows.start else self._problem.start
        each = zip(self._kernels, y, first, self._rows_read(rows), strict=True)
        residuals = [
            kernel.residual(part[rows], before, *read) for kernel, part, before, read in each
        ]
        return float(torch.stack(residuals).amax())

    def strayed(self, y: Trajectory, starts: Sequence[int], length: int) -> float:
        """Largest distance of a trajectory from windows of so many steps that are run sequentially
        from its own states; infinite for a NaN."""
        problem = self._problem
        begins = torch.tensor(starts, device=problem.device)
        rows = (begins.unsqueeze(1) + torch.arange(length, device=problem.device)).flatten()
        operands = self._read(rows, len(rows), None)
        distances: list[Tensor] = []
        for kernel, part, first, read in zip(
            self._kernels, y, problem.start, operands, strict=True
        ):
            before = torch.cat((first.unsqueeze(0), part))[begins]
            distances.append(kernel.strayed(before, part[rows], *read))
        return float(torch.stack(distances).amax())

    def jacobian(
        self, y: Trajectory, first: Trajectory, rows: slice, values: dict[Node, Tensor]
    ) -> Trajectory:
        """The Jacobian of some steps along a trajectory.

        Args:
            y: the trajectory of these steps; ``first`` precedes it.
            rows: the steps.
            values: their leaves, and what has been computed of them.
        """
        each = zip(self._kernels, y, first, self._rows_read(rows, values), strict=True)
        jacobians = [kernel.linearised(part, start, *read)[0] for kernel, part, start, read in each]
        return tuple(
            A if isinstance(algebra, Units) else A.permute(0, 3, 1, 2)
            for A, algebra in zip(jacobians, self._problem.algebras, strict=True)
        )

    def _rows_read(
        self, rows: slice, values: dict[Node, Tensor] | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Operands of kernels for some steps, beside the trajectory; cached for the latest
        steps."""
        key = rows.start, rows.stop
        if self._read_rows is None or self._read_rows[0] != key:
            self._read_rows = key, self._read(rows, rows.stop - rows.start, values)
        return self._read_rows[1]

    def _read(
        self, rows: Rows, count: int, values: dict[Node, Tensor] | None
    ) -> list[tuple[Tensor, Tensor]]:
        problem = self._problem
        values = problem.leaves_of_rows(rows) if values is None else dict(values)
        problem.evaluate([leaf for kernel in self._kernels for leaf in kernel.leaves], values)
        return [kernel.operands(values, count, problem.batch) for kernel in self._kernels]
