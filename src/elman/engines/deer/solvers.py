"""Newton's iteration on all steps at once, its variants, and the order in which they are tried.

Sources: Lim, Zhu, Selfridge & Kasim 2024 (DEER), arXiv:2309.12252v3, eq. 3 to 6; Gonzalez et al.
2024 (quasi-DEER: the diagonal of the Jacobian; ELK: damped), arXiv:2407.19115v2. The damping here
scales the Jacobian instead of adding a trust region's rows: with a scale of 0 it is Picard's
iteration, which is exact after t iterations at step t; with 1 it is Newton's.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from elman.engines import deadline
from elman.engines.deer.convergence import TOLERANCES, refusal
from elman.engines.deer.equations import (
    Equations,
    Rows,
    before,
    before_window,
    largest,
    windows,
)
from elman.engines.deer.iterations import Iterations, Trajectory
from elman.engines.deer.scans import Algebra, Dense, Units, scan
from elman.engines.time_shards import TimeShards, then

BUDGET = 256 << 20  # (bytes) for the Jacobians of a window and their intermediate values
# … on a processor, about a last level cache: from 32 units on it halves the time; 1 MiB is slower
IN_CACHE = 32 << 20
_CLIP = 1e8  # bound of iterates, as in the authors' code
BURST = 4  # iterations by kernels between two checks by the host
_STEPS = 32  # of a window of solver "windowed"


@dataclass(frozen=True)
class Method:
    """One iteration.

    Attributes:
        iterations: most iterations.
        scale: initial scale of the Jacobian.
        adapts: whether the scale falls when the residual grows, and rises when it falls.
        diagonal: whether a dense Jacobian's entries between units are left out: of a cell they are
            not computed (one backward step per state instead of one per unit), of any other
            function the diagonal is taken.
        window: steps solved together; 0: as many as the budget allows.
    """

    iterations: int
    scale: float = 1.0
    adapts: bool = False
    diagonal: bool = False
    window: int = 0

    @property
    def plain(self) -> bool:
        """Whether it is Newton's iteration unmodified."""
        return self.scale == 1.0 and not self.adapts and not self.diagonal


METHODS = {
    "newton": Method(40),
    "quasi": Method(200, diagonal=True),
    "damped": Method(120, adapts=True),
    "windowed": Method(40, window=_STEPS),
    "picard": Method(400, scale=0.0),
}
# tried in this order, fastest first, before the sequential fallback
CHAIN = ("newton", "damped", "windowed")


@dataclass
class Solution:
    """Result of :func:`solve`.

    Attributes:
        y: the trajectory; None if no solver passed the convergence checks.
        solver: the solver that did.
        iterations: of that solver, the most of any window.
        tried: solver -> why its result was not accepted.
    """

    y: Trajectory | None = None
    solver: str = ""
    iterations: int = 0
    tried: dict[str, str] = field(default_factory=dict)

    @property
    def attempts(self) -> str:
        """Rejected solvers and reasons, as text."""
        return "; ".join(f"{name}: {why}" for name, why in self.tried.items())


def solve(
    equations: Equations,
    solvers: tuple[str, ...],
    guess: str | Trajectory = "first",
    budget: int = BUDGET,
) -> Solution:
    """Solve by the first of some solvers whose result passes both convergence checks.

    Args:
        equations: the equations.
        solvers: names of ``METHODS``, in the order in which they are tried.
        guess: ``"first"``: f(0, x); ``"zeros"``; or a trajectory.
        budget: memory for the Jacobians of a window (bytes).
    """
    if equations.shards is not None:
        return _solve_over_time(equations, equations.shards, guess, budget)
    solution = Solution()
    dtype = equations.start[0].dtype if equations.start else torch.float32
    for name in solvers:
        view = equations.unitwise() if METHODS[name].diagonal else None
        y, iterations, why = _windows(view or equations, name, guess, budget)
        why = why or refusal(view or equations, y, dtype, budget)
        if why is None:
            solution.y = equations.repacked(y) if view else y
            solution.solver, solution.iterations = name, iterations
            break
        solution.tried[name] = why
    return solution


def _solve_over_time(
    equations: Equations, shards: TimeShards, guess: str | Trajectory, budget: int
) -> Solution:
    """Newton's iteration on time shards; sets the equations' ``start``.

    Each iteration goes through the windows twice: first for the map of all steps of this process,
    then, from the state that the maps before it give, for the steps. So no Jacobian outlives its
    window, for the price of linearising twice.
    """
    method, first = METHODS["newton"], equations.start
    demanded = TOLERANCES[first[0].dtype].residual
    slices = [*windows(equations, budget)]
    y = _joined([_initial_guess(equations, guess, first, rows) for rows in slices])
    for iteration in range(method.iterations + 1):
        deadline.check()
        start = equations.start = shards.starts(first, [part[-1] for part in y])
        maps: list[Any] = [None] * len(y)
        solved: list[Trajectory] = []
        off = size = 0.0
        for rows in slices:
            values, linear = _linear_rows(equations, start, y, rows)
            parts = zip(equations.algebras, maps, linear, strict=True)
            maps = [then(algebra, last, *pair) for algebra, last, pair in parts]
            distance = largest([f - part[rows] for f, part in zip(values, y, strict=True)])
            off = math.inf if math.isnan(distance) else max(off, distance)
            size = max(size, largest(values))
            solved.append(values)
        off, size = shards.largest((off, size))
        if math.isfinite(off) and off <= demanded * max(1.0, size):
            y = _joined(solved)
            equations.start = shards.starts(first, [part[-1] for part in y])
            dtype = first[0].dtype
            why = refusal(equations, y, dtype, budget)
            return Solution(tried={"newton": why}) if why else Solution(y, "newton", iteration)
        before_rows = [
            shards.start_of(algebra, factor, rest)
            for algebra, (factor, rest) in zip(equations.algebras, maps, strict=True)
        ]
        moved: list[Trajectory] = []
        for rows in slices:
            if len(slices) > 1:
                _, linear = _linear_rows(equations, start, y, rows)
            parts = zip(equations.algebras, linear, before_rows, strict=True)
            steps = [scan(algebra, *pair, state) for algebra, pair, state in parts]
            before_rows = [part[-1] for part in steps]
            moved.append(_clean(tuple(part[rows] + d for part, d in zip(y, steps, strict=True))))
        y = _joined(moved)
    why = f"residual {off:.2g} after {method.iterations} iterations"
    return Solution(tried={"newton": why})


def _linear_rows(
    equations: Equations, start: Trajectory, y: Trajectory, rows: slice
) -> tuple[Trajectory, list[tuple[Tensor, Tensor]]]:
    """f along some steps of a trajectory, and for each bundle the linear recurrence of its
    corrections."""
    values, jacobians = equations.linearised(before_window(start, y, rows), rows)
    linear = [
        (J if bool(J.isfinite().all()) else _bounded(J), torch.nan_to_num(f) - part[rows])
        for J, f, part in zip(jacobians, values, y, strict=True)
    ]
    return values, linear


def _joined(pieces: Sequence[Trajectory]) -> Trajectory:
    """The trajectory of all windows."""
    return tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))


def _bounded(value: Tensor) -> Tensor:
    """NaN as 0, infinities as ±_CLIP."""
    return torch.nan_to_num(value, nan=0.0, posinf=_CLIP, neginf=-_CLIP)


def _windows(
    equations: Equations, name: str, guess: str | Trajectory, budget: int
) -> tuple[Trajectory, int, str | None]:
    """Solve windows one after another, each from the last state of its predecessor."""
    method = METHODS[name]
    start = equations.start
    solved: list[Trajectory] = []
    most = 0
    for rows in windows(equations, budget, method.window):
        y, iterations, why = _window(equations, name, guess, start, rows)
        most = max(most, iterations)
        if why is not None:
            return y, most, f"steps {rows.start} to {rows.stop}: {why}"
        start = tuple(states[-1] for states in y)
        solved.append(y)
    return solved[0] if len(solved) == 1 else _joined(solved), most, None


def _window(
    equations: Equations,
    name: str,
    guess: str | Trajectory,
    start: Trajectory,
    rows: slice,
) -> tuple[Trajectory, int, str | None]:
    """Iterate on the steps of one window."""
    method = METHODS[name]
    demanded = TOLERANCES[start[0].dtype].residual if start else 0.0
    kernels = equations.iterations
    if method.plain and kernels is not None:
        first = guess == "first"
        y = kernels.guess(rows) if first else _initial_guess(equations, guess, start, rows)
        return _by_kernels(kernels, method, y, start, rows, demanded)
    y = _initial_guess(equations, guess, start, rows)
    scale, last = method.scale, math.inf
    accepted = y
    for iteration in range(method.iterations + 1):
        deadline.check()
        previous = before(start, y)
        values, jacobians = _linearised(equations, method, previous, rows)
        off = largest([a - b for a, b in zip(y, values, strict=True)]) / max(1.0, largest(values))
        if off <= demanded:
            return values, iteration, None
        if iteration == method.iterations:
            break
        if method.adapts:
            if off <= last:
                scale, accepted, last = min(1.0, 1.5 * scale), y, off
            elif scale > 1e-3:  # worse: a shorter step from the last better iterate
                scale *= 0.5
                y = accepted
                values, jacobians = _linearised(equations, method, before(start, y), rows)
        y = _clean(_solved(equations, method, scale, values, jacobians, y))
    return y, method.iterations, f"residual {off:.2g} after {method.iterations} iterations"


def _by_kernels(
    kernels: Iterations,
    method: Method,
    y: Trajectory,
    start: Trajectory,
    rows: slice,
    demanded: float,
) -> tuple[Trajectory, int, str | None]:
    """Iterate by kernels that run whole iterations, several at a time."""
    count, worst = method.iterations + 1, math.inf
    for first in range(0, count, BURST):
        deadline.check()
        off = kernels.notes(min(BURST, count - first))
        y = kernels.iterated(y, start, rows, off, demanded)
        notes = off.tolist()
        k = first_near(notes, demanded)
        if k is not None:
            return y, first + k, None
        worst = notes[-1][0] / max(1.0, notes[-1][1])
    return y, method.iterations, f"residual {worst:.2g} after {method.iterations} iterations"


def first_near(notes: Sequence[Sequence[float]], demanded: float) -> int | None:
    """The first converged iteration, by the kernels' own comparison in float32; None if none is.

    Args:
        notes: for each iteration the largest residual, and the largest value.
        demanded: tolerance of the residual, as a share of the largest value (at least 1).
    """
    for k, (worst, scale) in enumerate(notes):
        limit = _float32(_float32(demanded) * max(1.0, scale))
        if worst <= limit and math.isfinite(worst):
            return k
    return None


def _float32(value: float) -> float:
    """A number rounded to float32."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


def _initial_guess(
    equations: Equations, guess: str | Trajectory, start: Trajectory, rows: slice
) -> Trajectory:
    if not isinstance(guess, str):
        return tuple(part[rows] for part in guess)
    count = rows.stop - rows.start
    zeros = tuple(part.new_zeros(count, *part.shape) for part in start)
    return _clean(equations.values(zeros, rows)) if guess == "first" else zeros


def _clean(y: Trajectory) -> Trajectory:
    """Replace NaN by 0 and clamp to ±_CLIP."""
    return tuple(_bounded(part).clamp_(-_CLIP, _CLIP) for part in y)


def _linearised(
    equations: Equations, method: Method, previous: Trajectory, rows: Rows
) -> tuple[Trajectory, Trajectory]:
    if method.scale == 0.0:
        return equations.values(previous, rows), ()
    values, jacobians = equations.linearised(previous, rows)
    return values, jacobians


def _solved(
    equations: Equations,
    method: Method,
    scale: float,
    values: Trajectory,
    jacobians: Trajectory,
    y: Trajectory,
) -> Trajectory:
    """The trajectory of the recurrence linearised at y: y + d, d[t] = J[t] d[t-1] + (f - y)[t].

    Corrections need no product of Jacobian and iterate, and get smaller with each iteration.
    """
    if not jacobians:
        return values
    states: list[Tensor] = []
    for algebra, f, J, x in zip(equations.algebras, values, jacobians, y, strict=True):
        rest = torch.nan_to_num(f) - x
        d = _corrections(algebra, method, scale, J, rest)
        if not bool(d.isfinite().all()):  # NaN and infinities of J reach d: J is searched only then
            d = _corrections(algebra, method, scale, _bounded(J), rest)
        states.append(x + d)
    return tuple(states)


def _corrections(
    algebra: Algebra, method: Method, scale: float, jacobian: Tensor, rest: Tensor
) -> Tensor:
    """d[t] = scale J[t] d[t-1] + rest[t] from zero."""
    if scale != 1.0:
        jacobian = jacobian * scale
    if method.diagonal and isinstance(algebra, Dense):
        diagonals = algebra.diagonal(jacobian).flatten(1)[:, None, None]
        flat = rest.flatten(1).unsqueeze(1)
        return scan(Units(1), diagonals, flat, torch.zeros_like(flat[0])).reshape(rest.shape)
    return scan(algebra, jacobian, rest, torch.zeros_like(rest[0]))
