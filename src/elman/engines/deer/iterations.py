"""Newton iterations, residuals and convergence checks by the kernels of a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from elman.engines.deer.scans import Algebra, Units
from elman.engines.group_step import Progress
from elman.ir.graph import Node

Trajectory = tuple[Tensor, ...]  # one array per bundle of states, steps first


class CellEquations(Protocol):
    """The part of a cell's equations that iterations read."""

    start: Trajectory
    algebras: tuple[Algebra, ...]
    batch: int

    def leaves_of_rows(self, rows: slice) -> dict[Node, Tensor]:
        """The leaves of some steps."""
        ...

    def evaluate(self, roots: Sequence[Node], values: dict[Node, Tensor]) -> tuple[Tensor, ...]:
        """Values of some nodes; all computed values are added to ``values``."""
        ...


class Iterations:
    """Kernels applied to the equations of one call.

    Args:
        problem: the equations.
        kernels: one for each of its bundles of states, see
            ``elman.engines.triton.all_steps.newton``.
    """

    def __init__(self, problem: CellEquations, kernels: Sequence[Any]) -> None:
        self._problem, self._kernels = problem, kernels
        self._read_rows: tuple[tuple[int, int], list[tuple[Tensor, Tensor]]] | None = None

    def guess(self, rows: slice) -> Trajectory:
        """The first iterate of some steps: f of zeros."""
        count = rows.stop - rows.start
        each = zip(self._kernels, self._problem.start, self._rows_read(rows), strict=True)
        return tuple(kernel.guess(first, *read, count) for kernel, first, read in each)

    def improved(
        self, y: Trajectory, start: Trajectory, rows: slice, progress: Progress
    ) -> Trajectory:
        """One Newton iteration on some steps: the next iterate; ``progress`` gets the residual of
        the given one."""
        each = zip(self._kernels, y, start, self._rows_read(rows), strict=True)
        return tuple(
            kernel.improved(part, first, *read, progress) for kernel, part, first, read in each
        )

    def iterated(
        self, y: Trajectory, start: Trajectory, rows: slice, off: Tensor, demanded: float
    ) -> Trajectory:
        """Several iterations on some steps, without synchronising with the host.

        Args:
            y: the initial iterate.
            start: the states that precede the steps.
            rows: the steps.
            off: zeros, a row for each iteration, see :class:`Progress`.
            demanded: tolerance of the residual, as a share of the largest value (at least 1).

        Returns:
            The successor of the first converged iterate, or the last iterate.
        """
        for k in range(off.shape[0]):
            y = self.improved(y, start, rows, Progress(off, k, demanded))
        return y

    def judged(self, y: Trajectory, rows: slice, off: Tensor) -> Trajectory:
        """f along some steps of a trajectory; ``off`` [2] gets the largest distance of the steps
        from it, infinite for a NaN, and the trajectory's largest value."""
        each = zip(self._kernels, y, self._before(y, rows), self._rows_read(rows), strict=True)
        return tuple(
            kernel.values(part[rows], first, *read, Progress(off))
            for kernel, part, first, read in each
        )

    def stray(self, y: Trajectory, rows: slice, windows: int, length: int, off: Tensor) -> None:
        """Record in ``off`` [2] the largest distance of a trajectory from windows of ``length``
        steps that run sequentially from its own states, infinite for a NaN. The first window begins
        at the first step, the last ends at the last, the others are at equal distances."""
        each = zip(self._kernels, y, self._before(y, rows), self._rows_read(rows), strict=True)
        for kernel, part, first, read in each:
            kernel.strayed(part[rows], first, *read, Progress(off), windows=windows, length=length)

    def _before(self, y: Trajectory, rows: slice) -> Trajectory:
        """The states that precede some steps of a trajectory."""
        return tuple(part[rows.start - 1] for part in y) if rows.start else self._problem.start

    def notes(self, count: int) -> Tensor:
        """Memory for the notes of ``count`` iterations or checks, see :class:`Progress`."""
        return self._problem.start[0].new_zeros(count, 2)

    def jacobian(
        self, y: Trajectory, first: Trajectory, rows: slice, values: dict[Node, Tensor]
    ) -> Trajectory:
        """The Jacobian of some steps along a trajectory.

        Args:
            y: the trajectory of these steps; ``first`` precedes it.
            rows: the steps.
            values: their leaves, and values computed from them.
        """
        each = zip(self._kernels, y, first, self._rows_read(rows, values), strict=True)
        unread = Progress(y[0].new_empty(1, 2))
        jacobians = [
            kernel.linearised(part, start, *read, unread)[0] for kernel, part, start, read in each
        ]
        return tuple(
            A if isinstance(algebra, Units) else A.permute(0, 3, 1, 2)
            for A, algebra in zip(jacobians, self._problem.algebras, strict=True)
        )

    def _rows_read(
        self, rows: slice, values: dict[Node, Tensor] | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Operands of kernels for some steps besides the trajectory; cached for the latest
        steps."""
        key = rows.start, rows.stop
        if self._read_rows is None or self._read_rows[0] != key:
            problem, count = self._problem, rows.stop - rows.start
            values = problem.leaves_of_rows(rows) if values is None else dict(values)
            problem.evaluate([leaf for kernel in self._kernels for leaf in kernel.leaves], values)
            operands = [kernel.operands(values, count, problem.batch) for kernel in self._kernels]
            self._read_rows = key, operands
        return self._read_rows[1]
