"""The run-time half of a schedule: how the work of one call is shared and cut."""

from __future__ import annotations

from dataclasses import dataclass

from elman.plan.prices import width
from elman.plan.program import Program, Sweep

SPLITS = ("one", "batch", "units")
_CHUNK_ROWS = 768  # rows of T·B that a batched product takes at a time, so that they stay in cache
_SMALL = 20_000  # products of fewer weights: a step is too short to be shared by units


@dataclass(frozen=True)
class Schedule:
    """How one sweep runs.

    Attributes:
        split: index into ``SPLITS``: who takes part in a step, and how it is divided.
        workers: threads.
        chunk: time steps between two batched phases.
    """

    split: int
    workers: int
    chunk: int


def product_weights(sweep: Sweep, sizes: dict[str, int]) -> int:
    """Elements of all matrices that one step multiplies by."""
    return sum(
        width(term.args[0], sizes)
        for segment in sweep.step.segments
        for part in segment.parts
        for bundle in part.bundles
        for acc in bundle.accs
        for term in acc.terms
    )


def choose(program: Program, weights: int, B: int, T: int, workers: int, split: str) -> Schedule:
    """The cost model's schedule; ``split`` other than "" fixes who takes part in a step.

    Source: measured on two cores: one thread below about 80 units at B = 1, samples for small
    weights, units from about 128 on.
    """
    chunk = max(1, min(T, _CHUNK_ROWS // max(B, 1)))
    if workers == 1:
        return Schedule(0, 1, chunk)
    if split:
        return Schedule(SPLITS.index(split), workers, chunk)
    if workers <= B and weights < _SMALL:
        return Schedule(1, workers, chunk)
    if workers > B and weights < _SMALL:
        return Schedule(0, workers, chunk)
    return Schedule(2, workers, chunk)
