"""Where everything lies in memory: slots in rows, loop-invariant vectors in one array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from torch import Tensor

from elman.ir.graph import Node
from elman.ir.types import GateBlock
from elman.lowered.columns import Column, Columns
from elman.plan.program import Program

LEAST = 16  # units along which tensor cores multiply
ALIGNED = 16  # elements: a slot begins at a multiple of so many, so that loads are whole vectors


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
        self.vectors: dict[Node, int] = {}
        self.vector_area = 0
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

    def vector(self, value: Node) -> int:
        """Offset of a loop-invariant vector or scalar among all of them, given on first use."""
        if value not in self.vectors:
            self.vectors[value] = self.vector_area
            self.vector_area += self.width(value)
        return self.vectors[value]

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
                used += -(-self.size(gate_block) // ALIGNED) * ALIGNED
        for index, gate_block in enumerate(gate_blocks):
            if gate_block is None:
                offsets[index] = used
                used += 1
        return offsets, -(-used // ALIGNED) * ALIGNED


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
    return max(LEAST, power_of_2(size))


def power_of_2(size: int) -> int:
    """The least power of two that is no smaller."""
    return 1 << (size - 1).bit_length()
