"""Where everything lies: offsets of gate blocks in rows, of slots, packs and vectors in the
workspace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elman.engines.c.isa import Isa
from elman.engines.columns import Columns
from elman.ir.graph import Node
from elman.ir.pair import loop_invariant
from elman.ir.types import GateBlock
from elman.plan.program import Part, Phase, Program

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
        self.carry, self.carry_row = self._padded([leaf.shape for leaf in step.states])
        self.tape, self.tape_row = self._slots(program.tape)

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


def invariant_reads(phases: Iterable[Phase]) -> list[Node]:
    """Loop-invariant vectors and scalars that the phases read, in order; products' matrices are
    packed instead."""
    reads: dict[Node, None] = {}
    for phase in phases:
        for segment in phase.segments:
            nodes = [*segment.scalars, *(v for part in segment.parts for v in part.nodes)]
            for value in nodes:
                for arg in value.args[1:] if value.op == "matmul" else value.args:
                    if loop_invariant(arg) and arg.op not in ("const", "count"):
                        reads[arg] = None
            for value, _ in (*segment.scalar_writes, *(w for p in segment.parts for w in p.writes)):
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
