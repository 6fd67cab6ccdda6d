"""Prefetches of the next sample's rows, during passes over matrices of the current sample.

Directions that run sample by sample read a row of each input, of the tape and of gradients per
step: rows of neighbouring steps lie far apart, so hardware prefetchers do not predict them. Rows of
the next sample follow those of this one, and a chunk of them fits into a near cache. After a
worker's last sample nothing is prefetched: it would take cache lines from the worker that writes
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from elman.engines.c.spelling.values import accesses
from elman.lowered.groups import unrolled_phase
from elman.lowered.types import Access, Direction, Part, Space

_DISTANT = (Space.INPUT, Space.OUTPUT, Space.D_OUTPUT, Space.D_INPUT, Space.TAPE)
LINES = 4  # cache lines that are prefetched from one address on


@dataclass(frozen=True)
class RowPrefetches:
    """Cache lines that a part over a matrix prefetches.

    Attributes:
        places: columns and first elements.
        line: elements of a cache line.
        every: rows of the matrix from one place to the next, a power of two.
    """

    places: tuple[tuple[Access, int], ...]
    line: int
    every: int


def distant_columns(direction: Direction) -> list[Access]:
    """The vectors in distant memory that the steps of a sample read or write, of each group in a
    loop over groups. Matrices are left out: their rows are contiguous."""
    phases = map(unrolled_phase, direction.all_phases)
    segments = [segment for phase in phases for segment in phase.segments]
    sizes = {part.axes[0] * part.axes[1] for part in direction.parts if part.axes}
    return [
        access
        for access in dict.fromkeys(a for segment in segments for a in accesses(segment))
        if access.region.space in _DISTANT and not access.scalar and access.units not in sizes
    ]


def plan_prefetches(
    columns: Sequence[Access], parts: Sequence[Part], line: int
) -> dict[int, RowPrefetches]:
    """The prefetches of each part over a matrix, by its identity: in proportion to its rows, at
    most one cache line (of ``line`` elements) per row."""
    span = LINES * line
    places = [(access, start) for access in columns for start in range(0, access.units, span)]
    rows = [part.axes[0] if part.axes else 0 for part in parts]
    ahead: dict[int, RowPrefetches] = {}
    first = 0
    for part, count, passed in zip(parts, rows, accumulate(rows)):
        end = min(len(places) * passed // sum(rows), first + count // LINES)
        if end > first:
            every = LINES << (count // (LINES * (end - first))).bit_length() - 1
            ahead[id(part)] = RowPrefetches(tuple(places[first:end]), line, every)
        first = end
    return ahead
