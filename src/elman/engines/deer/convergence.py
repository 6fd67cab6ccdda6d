"""When a trajectory is accepted: its residual over all steps, and a sequential run of some of
them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elman.engines.deer.equations import Equations, before_window, largest, windows
from elman.engines.deer.iterations import Trajectory

if TYPE_CHECKING:
    from elman.engines.deer.iterations import Iterations

WINDOWS, WINDOW = 4, 16  # sampled windows, and most steps of each


@dataclass(frozen=True)
class Tolerance:
    """Tolerances of a trajectory, relative to its largest state (at least 1).

    Attributes:
        residual: largest |y[t] - f(y[t-1], x[t])| of all steps.
        agreement: largest distance from a sequential run, divided by the root of its steps.
    """

    residual: float
    agreement: float


TOLERANCES = {
    torch.float32: Tolerance(2e-6, 1e-5),
    torch.float64: Tolerance(1e-13, 1e-11),
}


def residual(equations: Equations, y: Trajectory, budget: int) -> float:
    """Largest |y[t] - f(y[t-1], x[t])|, or NaN.

    Args:
        equations, y: the equations and a trajectory.
        budget: of the solver, whose windows bound the memory of this check, too (bytes).
    """
    worst = 0.0
    for rows in windows(equations, budget):
        values = equations.values(before_window(equations.start, y, rows), rows)
        off = largest([a[rows] - b for a, b in zip(y, values, strict=True)])
        if math.isnan(off):
            return off
        worst = max(worst, off)
    return worst


def disagreement(equations: Equations, y: Trajectory) -> float:
    """Largest distance of some windows from a sequential run, over the root of their steps.

    Windows begin at the trajectory's own states: at the first step, at the last, and in between.
    """
    length = min(WINDOW, equations.steps)
    last = equations.steps - length
    starts = sorted({round(last * k / (WINDOWS - 1)) for k in range(WINDOWS)})
    worst = _strayed(equations, y, starts, length)
    return worst / math.sqrt(length)


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


def note_errors(kernels: Iterations, y: Trajectory, rows: slice, notes: Tensor) -> Trajectory:
    """Record, by kernels, the notes of :func:`errors_noted`; return f along the steps.

    Args:
        kernels: of the equations.
        y, rows: a trajectory, and some of its steps.
        notes: memory for the notes [2, 2], see :meth:`Iterations.notes`.
    """
    f = kernels.judged(y, rows, notes[0])
    kernels.stray(y, rows, WINDOWS, min(WINDOW, rows.stop - rows.start), notes[1])
    return f


def errors_noted(notes: Sequence[Sequence[float]], steps: int) -> tuple[float, float]:
    """Residual and disagreement (see :func:`residual`, :func:`disagreement`) from the notes of
    windows of at most ``steps`` steps."""
    scale = max(1.0, *(largest for _, largest in notes[::2]))
    worst, strayed = (max(off for off, _ in notes[first::2]) for first in (0, 1))
    return worst / scale, strayed / (math.sqrt(min(WINDOW, steps)) * scale)


def errors(equations: Equations, y: Trajectory, budget: int) -> Iterator[float]:
    """The residual of a trajectory, then its disagreement with a sequential run, which is not
    computed if the caller stops after the first; kernels compute both."""
    kernels = equations.iterations
    if kernels is None:
        worst, size = equations.largest_of_all(residual(equations, y, budget), largest(y))
        yield worst / max(1.0, size)
        (strayed,) = equations.largest_of_all(disagreement(equations, y))
        yield strayed / max(1.0, size)
        return
    slices = [*windows(equations, budget)]
    notes = kernels.notes(2 * len(slices))
    for k, rows in enumerate(slices):
        note_errors(kernels, y, rows, notes[2 * k : 2 * k + 2])
    yield from errors_noted(notes.tolist(), slices[0].stop)


def refusal(equations: Equations, y: Trajectory, dtype: torch.dtype, budget: int) -> str | None:
    """Why a trajectory is not accepted, or None."""
    return refusal_of_errors(errors(equations, y, budget), dtype)


def refusal_of_errors(errors: Iterable[float], dtype: torch.dtype) -> str | None:
    """Why a trajectory with such a residual and disagreement is not accepted, or None."""
    demanded = TOLERANCES[dtype]
    texts = "residual {:.2g} (at most {:.2g})", "{:.2g} off a sequential run (at most {:.2g})"
    limits = demanded.residual, demanded.agreement
    for error, limit, text in zip(errors, limits, texts, strict=True):
        if not error <= limit:
            return text.format(error, limit)
    return None


def finite(tensors: Sequence[Tensor]) -> bool:
    """Whether there is neither a NaN nor an infinity."""
    return all(bool(value.isfinite().all()) for value in tensors)
