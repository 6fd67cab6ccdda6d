"""Memory layout: the array and offset of every value."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from elman.engines.triton.device import limits
from elman.lowered.columns import Column
from elman.lowered.layout import InvariantMemory, Layout
from elman.lowered.lower import DirectionLowering
from elman.lowered.types import Access, Space
from elman.plan.program import Program, Sweep
from elman.plan.schedule import Blocks

_NAMES = {
    Space.INPUT: "in",
    Space.STATE: "st",
    Space.GATHERED: "st",
    Space.OUTPUT: "out",
    Space.D_OUTPUT: "dy",
    Space.D_INPUT: "din",
    Space.CARRY: "ca",
    Space.TAPE: "tape",
    Space.CHUNK: "ch",
    Space.SCRATCH: "sr",
    Space.SCALAR: "sc",
}
_AFTER = {Space.STATE: "nx", Space.CARRY: "cn"}  # of the next step
_SEVERAL = (Space.INPUT, Space.STATE, Space.GATHERED, Space.D_INPUT)
_BLOCKS = Blocks(rolled_statements=sys.maxsize)  # no loops over heads: they are a launch axis


def array_of(access: Access) -> str:
    """The name of the array of rows in which a column lies."""
    space = access.region.space
    name = _AFTER[space] if access.step else _NAMES[space]
    return f"{name}{access.region.array}" if space in _SEVERAL else name


class ColumnRange(NamedTuple):
    """Columns of an array of rows, by its name."""

    base: str
    offset: int
    width: int

    @staticmethod
    def of(access: Access) -> ColumnRange:
        """The units of a value."""
        return ColumnRange(array_of(access), access.offset, access.units)

    def view(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """The columns [.., rows, n]."""
        return arrays[self.base].narrow(-1, self.offset, self.width)

    def is_contiguous_with(self, after: ColumnRange) -> bool:
        """Whether another begins where this one ends."""
        return (self.base, self.offset + self.width) == after[:2]


def merged(places: Sequence[ColumnRange]) -> list[ColumnRange]:
    """Column ranges in order, contiguous ones joined."""
    ranges: list[ColumnRange] = []
    for place in places:
        if ranges and ranges[-1].is_contiguous_with(place):
            ranges[-1] = ranges[-1]._replace(width=ranges[-1].width + place.width)
        else:
            ranges.append(place)
    return ranges


class TritonLayout(Layout):
    """All compile-time numbers of one program.

    Attributes:
        memory: offsets of loop-invariant vectors and scalars in one array, and the matrices.
    """

    joins_sums, sums_in_place = True, False

    def __init__(self, program: Program) -> None:
        super().__init__(program, limits.ALIGNED, 0)
        self.memory = InvariantMemory(self)

    def lowering(self, sweep: Sweep) -> DirectionLowering:
        """A direction of the program, to be lowered."""
        name = "forward" if sweep is self.program.forward else "backward"
        return DirectionLowering(name, sweep, self, self.memory, _BLOCKS)

    def carried(self) -> list[tuple[int, int, Column]]:
        """For each gate block of the states: its array, its place in the carry, its column."""
        return [(column.array, self.carry[k], column) for k, column in enumerate(self.states)]


def padded(size: int) -> int:
    """The power of two that holds ``size`` units, at least the smallest that products take."""
    return max(limits.LEAST_UNITS, power_of_2(size))


def tile_units(samples: int, item_bytes: int) -> int:
    """Most units of a tile of an operand, in a grid."""
    return power_of_2(limits.OPERAND // (samples * item_bytes) + 1) // 2


def power_of_2(size: int) -> int:
    """The smallest power of two >= size."""
    return 1 << (size - 1).bit_length()


@dataclass(frozen=True)
class KTile:
    """A part of a product's inner dim of ``size`` units: a power of two from ``start`` on."""

    size: int
    start: int
    length: int

    @property
    def padded(self) -> bool:
        """Whether it reaches beyond the last unit."""
        return self.start + self.length > self.size


def k_tiles(size: int, most: int) -> tuple[KTile, ...]:
    """An inner dim as powers of two of at most ``most`` units, with little padding: 1152 is 1024
    and 128."""
    tiles: list[KTile] = []
    at = 0
    while at < size:
        rest = size - at
        length = min(padded(rest), most)
        if length - rest > limits.K_PADDING * size and length > limits.K_PADDED:
            length //= 2
        tiles.append(KTile(size, at, length))
        at += length
    return tuple(tiles)
