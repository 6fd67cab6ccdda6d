"""A problem's iterations by the kernels of a device; and what judges them, by kernels too."""

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
    """What kernels compute of the equations of one call.

    Args:
        problem: the equations.
        kernels: one for each of its bundles of states, as of ``elman.engines.triton.newton``.
    """

    def __init__(self, problem: Problem, kernels: Sequence[Any]) -> None:
        self._problem, self._kernels = problem, kernels
        self._kept: tuple[tuple[int, int], list[tuple[Tensor, Tensor]]] | None = None

    def improved(self, y: Trajectory, start: Trajectory, rows: slice) -> tuple[Trajectory, float]:
        """What one iteration of Newton's makes of some steps, and the residual of what it was given
        as a share of its largest value (at least 1)."""
        given = self._given(rows)
        made = [
            one.improved(part, first, *read)
            for one, part, first, read in zip(self._kernels, y, start, given, strict=True)
        ]
        worst, largest = torch.stack([off for _, off in made]).amax(0).tolist()
        off = worst / max(1.0, largest) if math.isfinite(worst) else math.inf
        return tuple(iterate for iterate, _ in made), off

    def residual(self, y: Trajectory, rows: slice) -> float:
        """Largest |y[t] - f(y[t-1], x[t])| of some steps of a trajectory; infinite for a NaN."""
        first = tuple(part[rows.start - 1] for part in y) if rows.start else self._problem.start
        each = zip(self._kernels, y, first, self._given(rows), strict=True)
        found = [one.residual(part[rows], before, *read) for one, part, before, read in each]
        return float(torch.stack(found).amax())

    def strayed(self, y: Trajectory, starts: Sequence[int], length: int) -> float:
        """Largest distance of a trajectory from windows of so many steps that are run sequentially
        from its own states; infinite for a NaN."""
        problem = self._problem
        begins = torch.tensor(starts, device=problem.device)
        rows = (begins.unsqueeze(1) + torch.arange(length, device=problem.device)).flatten()
        given = self._read(rows, len(rows), None)
        found: list[Tensor] = []
        for one, part, first, read in zip(self._kernels, y, problem.start, given, strict=True):
            before = torch.cat((first.unsqueeze(0), part))[begins]
            found.append(one.strayed(before, part[rows], *read))
        return float(torch.stack(found).amax())

    def jacobian(
        self, y: Trajectory, first: Trajectory, rows: slice, known: dict[Node, Tensor]
    ) -> Trajectory:
        """The Jacobian of some steps along a trajectory.

        Args:
            y: the trajectory of these steps; ``first`` precedes it.
            rows: the steps.
            known: their leaves, and what has been computed of them.
        """
        each = zip(self._kernels, y, first, self._given(rows, known), strict=True)
        made = [one.linearised(part, start, *read)[0] for one, part, start, read in each]
        return tuple(
            A if isinstance(algebra, Units) else A.permute(0, 3, 1, 2)
            for A, algebra in zip(made, self._problem.algebras, strict=True)
        )

    def _given(
        self, rows: slice, known: dict[Node, Tensor] | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """What kernels of some steps read beside the trajectory; of the last steps it is kept."""
        key = rows.start, rows.stop
        if self._kept is None or self._kept[0] != key:
            self._kept = key, self._read(rows, rows.stop - rows.start, known)
        return self._kept[1]

    def _read(
        self, rows: Rows, count: int, known: dict[Node, Tensor] | None
    ) -> list[tuple[Tensor, Tensor]]:
        problem = self._problem
        known = problem.leaves_of_rows(rows) if known is None else dict(known)
        problem.evaluate([leaf for one in self._kernels for leaf in one.leaves], known)
        return [one.given(known, count, problem.batch) for one in self._kernels]
