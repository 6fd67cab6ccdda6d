"""Memory layout: offsets of gate blocks in rows, of slots, packs and vectors in the workspace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from elman.engines.c.isa import Isa
from elman.engines.columns import Columns
from elman.ir.graph import Node
from elman.ir.pair import loop_invariant
from elman.ir.types import GateBlock
from elman.plan.program import Buffer, Part, Phase, Program

_CONFLICT = (
    256  # rows that are multiples of this many elements fall into the same few sets of a cache
)


class CLayout(Columns):
    """All compile-time numbers of one program on one instruction set."""

    def __init__(self, program: Program, isa: Isa) -> None:
        super().__init__(program)
        self.lanes = isa.lanes(program.spec.dtype)
        self.isa = isa
        self.tiled = "tiling" not in program.spec.options.without
        step = program.pair.step
        self.gate_blocks: list[GateBlock] = []
        self.vectors: dict[Node, int] = {}  # loop-invariant value -> its offset
        self.vector_area = 0
        # the cotangent of a vector that is only held is summed where it lies: nobody else reads it
        # (a scalar's is read by every worker); those of other states alternate between two rows
        self.summed = [bool(leaf.shape) and leaf in step.held for leaf in step.states]
        self.carry, (self.carry_row, self.summed_row) = self._carries()
        self.tape, self.tape_row = self._slots(program.tape)

    def _carries(self) -> tuple[dict[int, int], tuple[int, int]]:
        """Offsets of the cotangents of states in their rows, and the lengths of both kinds of
        rows."""
        states = self.program.pair.step.states
        offsets: dict[int, int] = {}
        lengths: list[int] = []
        for kind in (False, True):
            indices = [k for k, summed in enumerate(self.summed) if summed == kind]
            places, length = self._padded([states[k].shape for k in indices])
            offsets.update(zip(indices, places, strict=True))
            lengths.append(length)
        return offsets, (lengths[0], lengths[1])

    def carried(self, index: int, step: str) -> tuple[str, int]:
        """C text of the address of a state's cotangent rows read by the backward of a step, and
        their length."""
        if self.summed[index]:
            return f"c->carry + 2 * c->B * {self.carry_row}", self.summed_row
        return f"c->carry + (({step}) & 1) * c->B * {self.carry_row}", self.carry_row

    def padded(self, gate_block: GateBlock) -> int:
        """Units of a gate block, rounded up to whole vectors."""
        return -(-self.size(gate_block) // self.lanes) * self.lanes

    def chunk(self, slots: Sequence[GateBlock | None]) -> tuple[list[int], int]:
        """Offsets of the slots of one sweep's chunk workspace, and its row length."""
        return self._slots(slots)

    def scratch(self, phase: Phase) -> tuple[list[int], int]:
        """Offsets of a phase's scratch columns, and its row length."""
        return self._slots(phase.scratch)

    def vector(self, value: Node) -> int:
        """Offset of a loop-invariant vector or scalar in the vector area, given on first use."""
        if value not in self.vectors:
            self.vectors[value] = self.vector_area
            width = self.padded(value.shape[0][0]) if value.shape else self.lanes
            self.vector_area += width
        return self.vectors[value]

    def needless(self, target: Buffer) -> bool:
        """Whether a store would copy a row onto itself."""
        return target.where == "next" and self.column(target).array in self.held

    def gate_block(self, gate_block: GateBlock) -> int:
        """The number of a gate block in the tables of unit ranges."""
        if gate_block not in self.gate_blocks:
            self.gate_blocks.append(gate_block)
        return self.gate_blocks.index(gate_block)

    def _padded(self, shapes: Iterable[tuple[tuple[GateBlock, ...], ...]]) -> tuple[list[int], int]:
        return self._slots([shape[0][0] if shape else None for shape in shapes])

    def _slots(self, slots: Sequence[GateBlock | None]) -> tuple[list[int], int]:
        offsets: list[int] = [0] * len(slots)
        used = 0
        for index, gate_block in enumerate(slots):
            if gate_block is not None:
                offsets[index] = used
                used += self.padded(gate_block)
        for index, gate_block in enumerate(slots):
            if gate_block is None:
                offsets[index] = used
                used += 1
        row = -(-used // self.lanes) * self.lanes
        if row and row % _CONFLICT == 0:
            row += 64 // (8 if self.program.spec.dtype == "float64" else 4)
        return offsets, row


def reads(phase: Phase) -> Iterator[Node]:
    """Values that a phase reads or stores; some of them again and again."""
    for segment in phase.segments:
        for value in segment.nodes:
            yield from value.args
        for value, _ in segment.writes:
            yield value


def invariant_reads(phases: Iterable[Phase]) -> list[Node]:
    """Loop-invariant vectors and scalars that the phases read, in order; products' matrices are
    packed instead."""
    reads: dict[Node, None] = {}
    for phase in phases:
        for segment in phase.segments:
            for value in segment.nodes:
                for arg in value.args[1:] if value.op == "matmul" else value.args:
                    if loop_invariant(arg) and arg.op not in ("const", "count"):
                        reads[arg] = None
            for value, _ in segment.writes:
                if loop_invariant(value) and value.op not in ("const", "count"):
                    reads[value] = None
    return list(reads)


def product_parts(phases: Iterable[Phase]) -> list[Part]:
    """All parts of the phases that have products."""
    return [
        part
        for phase in phases
        for segment in phase.segments
        for part in segment.parts
        if part.bundles
    ]
