"""Where everything lies in memory: slots in rows, loop-invariant vectors in one array."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from torch import Tensor

from elman.engines.triton import limits
from elman.ir.graph import Node
from elman.ir.pair import loop_invariant
from elman.ir.types import GateBlock
from elman.lowered.columns import Column, Columns
from elman.plan.program import Phase, Program


class ColumnRange(NamedTuple):
    """Columns of an array of rows, by its name."""

    base: str
    offset: int
    width: int

    def view(self, arrays: Mapping[str, Tensor]) -> Tensor:
        """Them [.., rows, n]."""
        return arrays[self.base].narrow(-1, self.offset, self.width)

    def is_contiguous_with(self, after: ColumnRange) -> bool:
        """Whether another begins where this one ends."""
        return (self.base, self.offset + self.width) == after[:2]


def merged(places: Sequence[ColumnRange]) -> list[ColumnRange]:
    """Places in their order, contiguous ones as one."""
    ranges: list[ColumnRange] = []
    for place in places:
        if ranges and ranges[-1].is_contiguous_with(place):
            ranges[-1] = ranges[-1]._replace(width=ranges[-1].width + place.width)
        else:
            ranges.append(place)
    return ranges


class TritonLayout(Columns):
    """All compile-time numbers of one program."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.vectors = self._vectors()
        self._ranks = _ranks(program)
        leaves = program.pair.step.states
        self.carry, self.carry_row = self.slots(
            [leaf.shape[0][0] if leaf.shape else None for leaf in leaves]
        )
        self.tape, self.tape_row = self.slots(program.tape, "tape")

    def width(self, value: Node) -> int:
        """Units of a value; 1 for a scalar."""
        return self.size(value.shape[0][0]) if value.shape else 1

    def carried(self) -> list[tuple[int, int, Column]]:
        """For each gate block of the states: its array, its place in the carry, its column."""
        return [
            (column.array, offset, column)
            for offset, column in zip(self.carry, self.states, strict=True)
        ]

    def _vectors(self) -> dict[Node, int]:
        """Offsets of all loop-invariant vectors and scalars in one array, in the order in which
        kernels read them."""
        program, offsets, used = self.program, dict[Node, int](), 0
        sweeps = [program.forward, *([program.backward] if program.backward is not None else [])]
        for phase in (p for sweep in sweeps for p in (sweep.before, sweep.after, sweep.step)):
            for value in _values_read(phase):
                if value not in offsets and loop_invariant(value):
                    offsets[value] = used
                    used += self.width(value)
        return offsets

    def slots(
        self, gate_blocks: Sequence[GateBlock | None], kind: str = ""
    ) -> tuple[list[int], int]:
        """Offsets of slots in a row, vectors first, and the row's length.

        Args:
            gate_blocks: of the slots; None: a scalar.
            kind: ``tape``, or the backward's ``chunk``: what is summed lies in the order of the
                weights that it is the gradient of.
        """
        ranks = self._ranks.get(kind, {})
        order = sorted(range(len(gate_blocks)), key=lambda index: ranks.get(index, inf))
        offsets = [0] * len(gate_blocks)
        used = 0
        for index in order:
            gate_block = gate_blocks[index]
            if gate_block is not None:
                offsets[index] = used
                used += -(-self.size(gate_block) // limits.ALIGNED) * limits.ALIGNED
        for index, gate_block in enumerate(gate_blocks):
            if gate_block is None:
                offsets[index] = used
                used += 1
        return offsets, -(-used // limits.ALIGNED) * limits.ALIGNED


def _values_read(phase: Phase) -> Iterator[Node]:
    """What a phase's kernels read, constants and matrices apart."""
    for segment in phase.segments:
        for nodes, writes in (
            (segment.scalars, segment.scalar_writes),
            *((part.nodes, part.writes) for part in segment.parts),
        ):
            values = [arg for node in nodes for arg in node.args[node.op == "matmul" :]]
            values += [value for value, _ in writes]
            yield from (value for value in values if value.op not in ("const", "count"))


def _ranks(program: Program) -> dict[str, dict[int, int]]:
    """By kind and slot: the first weight block whose gradient is a sum of the slot's rows."""
    by_kind: dict[str, dict[int, int]] = {"tape": {}, "chunk": {}}
    if program.backward is None:
        return by_kind
    blocks = program.pair.blocks
    for term in program.sums:
        buffer = program.backward.summed(term.left)
        if buffer.where in by_kind and term.target in blocks:
            ranks, first = by_kind[buffer.where], blocks[term.target][0]
            ranks[buffer.index] = min(first, ranks.get(buffer.index, first))
    return by_kind


def padded(size: int) -> int:
    """The power of two that holds so many units, at least what a product takes."""
    return max(limits.LEAST_UNITS, power_of_2(size))


def power_of_2(size: int) -> int:
    """The least power of two that is no smaller."""
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


def k_tiles(size: int) -> tuple[KTile, ...]:
    """An inner dim as powers of two, with little padding: 1152 is 1024 and 128."""
    tiles: list[KTile] = []
    at = 0
    while at < size:
        rest = size - at
        length = padded(rest)
        if length - rest > limits.K_PADDING * size and length > limits.K_PADDED:
            length //= 2
        tiles.append(KTile(size, at, length))
        at += length
    return tuple(tiles)
