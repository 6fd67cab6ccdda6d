"""Offsets of gate blocks, slots, weights and loop-invariant values in the memory of a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType

from elman.ir.graph import Node
from elman.ir.pair import Pair
from elman.ir.types import GateBlock, is_matrix
from elman.lowered.columns import Columns
from elman.lowered.types import Access, Matrix, Region, Space
from elman.plan.program import Buffer, Phase, Program
from elman.plan.segments import full_reads

_CACHE_LINE = 64  # (bytes)
_LINE = 16  # elements that a cache line has at most
_NO_SUMS: Mapping[int, int] = MappingProxyType({})


class Layout(Columns):
    """All compile-time offsets of one program.

    Args:
        program: what is laid out.
        lanes: elements of a vector, to which units are padded.
        conflicting_row: rows that are multiples of so many elements are made longer; 0: none.

    Attributes:
        joins_sums: whether slots whose rows are summed lie in the order of the weights that these
            are gradients of, so that one product takes several of them.
        sums_in_place: whether cotangents may be summed where they lie.
        gate_blocks: all of the program, in the order of the tables of unit ranges.
        summed: by state: whether its cotangent has one row, and is changed where it lies. Nobody
            else reads that of a vector that is only held (a scalar's is read by every worker), or
            of a matrix that is written in the last pass over it; those of other states alternate
            between two rows.
        carry, carry_row, summed_row: offsets of the cotangents of states, and lengths of both kinds
            of rows.
        tape, tape_row: the same of the tape's slots.
    """

    joins_sums, sums_in_place = False, True

    def __init__(self, program: Program, lanes: int, conflicting_row: int) -> None:
        super().__init__(program)
        self.lanes, self._conflicting_row = lanes, conflicting_row
        self.steps = program.spec.steps
        step = program.pair.step
        self.gate_blocks = _gate_blocks(program)
        self._first_sums = _first_sums(program) if self.joins_sums else {}
        self.summed = [
            self.sums_in_place
            and bool(leaf.shape)
            and (leaf in step.held or _changes_in_place(program, k))
            for k, leaf in enumerate(step.states)
        ]
        self.carry, (self.carry_row, self.summed_row) = self._carries()
        self.tape, self.tape_row = self.slots(program.tape, "tape")
        self.weights = WeightBlocks(self, program.pair)

    def _carries(self) -> tuple[dict[int, int], tuple[int, int]]:
        """Offsets of the cotangents of states in their rows, and the lengths of both kinds of
        rows."""
        states = self.program.pair.step.states
        offsets: dict[int, int] = {}
        lengths: list[int] = []
        for kind in (False, True):
            indices = [k for k, summed in enumerate(self.summed) if summed == kind]
            shapes = [states[k].shape for k in indices]
            places, length = self.slots([shape[0][0] if shape else None for shape in shapes])
            offsets.update(zip(indices, places, strict=True))
            lengths.append(length)
        return offsets, (lengths[0], lengths[1])

    def matrix_row(self, array: int) -> int:
        """Elements of one sample's matrix, where steps lie behind one another."""
        return -(-self.state_widths[array] // _LINE) * _LINE

    @property
    def matrix_rows(self) -> int:
        """Elements of all of one sample's matrices."""
        return sum(map(self.matrix_row, self.matrices))

    def padded(self, gate_block: GateBlock) -> int:
        """Units of a gate block, rounded up to whole vectors."""
        return -(-self.size(gate_block) // self.lanes) * self.lanes

    def units(self, value: Node, axis: int = 0) -> int:
        """Units of a value along an axis; 1 for a scalar."""
        return self.size(value.shape[axis][0]) if len(value.shape) > axis else 1

    def slots(self, slots: Sequence[GateBlock | None], kind: str = "") -> tuple[list[int], int]:
        """Offsets of slots in a row (None: a scalar's), and the row's length.

        ``kind``: ``tape``, or ``chunk`` of the backward, whose rows may be summed.
        """
        offsets: list[int] = [0] * len(slots)
        used = 0
        first = self._first_sums.get(kind, _NO_SUMS)
        for index in sorted(range(len(slots)), key=lambda index: first.get(index, inf)):
            gate_block = slots[index]
            if gate_block is not None:
                offsets[index] = used
                used += self.padded(gate_block)
        for index, gate_block in enumerate(slots):
            if gate_block is None:
                offsets[index] = used
                used += 1
        row = -(-used // self.lanes) * self.lanes
        if row and self._conflicting_row and row % self._conflicting_row == 0:
            row += self.line
        return offsets, row

    @property
    def line(self) -> int:
        """Elements of a cache line."""
        return _CACHE_LINE // (8 if self.program.spec.dtype == "float64" else 4)


def _changes_in_place(program: Program, index: int) -> bool:
    """Whether the backward reads the cotangent of a matrix state no more once it writes it: in the
    last part alone that does, element by element."""
    step, sweep = program.pair.step, program.backward
    if sweep is None or not is_matrix(step.states[index]):
        return False
    carried = program.pair.d_next[index]
    target = Buffer("d_state", index)
    parts = [part for segment in sweep.step.segments for part in segment.parts]
    writing = [k for k, part in enumerate(parts) if any(b == target for _, b in part.writes)]
    reading = [
        k
        for k, part in enumerate(parts)
        if any(carried in value.args for value in part.nodes)
        or any(value is carried for value, _ in part.writes)
    ]
    whole = any(carried in full_reads(v) for s in sweep.step.segments for v in s.nodes)
    return not whole and max(reading, default=-1) <= writing[-1]


def _gate_blocks(program: Program) -> list[GateBlock]:
    """Every gate block of a program once: of its vectors, then of its parts."""
    vectors = [v.shape[0][0] for v in program.pair.step.walk() if len(v.shape) == 1]
    parts = [
        part.gate_block
        for sweep in program.sweeps
        for phase in sweep.phases
        for segment in phase.segments
        for part in segment.parts
    ]
    return list(dict.fromkeys([*vectors, *parts]))


def _first_sums(program: Program) -> dict[str, dict[int, int]]:
    """By kind and slot: the first weight block whose gradient is a sum of the slot's rows."""
    by_kind: dict[str, dict[int, int]] = {"tape": {}, "chunk": {}}
    blocks, backward = program.pair.blocks, program.backward
    if backward is None:
        return by_kind
    for term in program.sums:
        buffer = backward.summed(term.left)
        if buffer.where in by_kind and term.target in blocks:
            ranks, first = by_kind[buffer.where], blocks[term.target][0]
            ranks[buffer.index] = min(first, ranks.get(buffer.index, first))
    return by_kind


class WeightBlocks:
    """The caller's weights: array, offset and row length of each block.

    Attributes:
        names: of the arrays, in declared order.
    """

    def __init__(self, layout: Layout, pair: Pair) -> None:
        self._layout = layout
        weights = pair.step.weights
        self.names = [str(name) for name in dict.fromkeys(leaf.data[0] for leaf in weights)]
        self._array = {leaf: self.names.index(leaf.name) for leaf in weights}
        self._offset: dict[Node, int] = {}
        self._row: dict[Node, int] = {}
        units = layout.units
        for leaf in weights:
            siblings = [block for block in weights if block.name == leaf.name]
            if len(leaf.shape) == 2:
                top = [block for block in siblings if block.row == 0]
                width = sum(units(block, 1) for block in top)
                above = [o for o in siblings if o.column == 0 and o.row < leaf.row]
                before = sum(units(o, 1) for o in top if o.column < leaf.column)
                self._offset[leaf] = sum(map(units, above)) * width + before
                self._row[leaf] = width
            else:
                self._offset[leaf] = sum(units(o) for o in siblings if o.row < leaf.row)
                self._row[leaf] = 1

    def access(self, leaf: Node, space: Space = Space.WEIGHT) -> Access:
        """A block in the caller's array, or (``D_WEIGHT``) in that of its gradient."""
        units = self._layout.units(leaf, max(len(leaf.shape), 1) - 1)
        region = Region(space, self._row[leaf], self._array[leaf])
        return Access(region, self._offset[leaf], units, units, scalar=not leaf.shape)


class InvariantMemory:
    """Memory of weight rate: vectors and scalars of the whole program, matrices of a direction.

    Attributes:
        offsets: of all vectors and scalars.
        values: of the direction's matrices.
        vectors, matrices: elements of both memories.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.offsets: dict[Node, int] = {}
        self.values: dict[Matrix, Node] = {}
        self.vectors = self.matrices = 0
        self._matrices: dict[Node, int] = {}

    def begin_direction(self) -> None:
        """Matrices of another direction: each has a workspace of its own."""
        self.values, self._matrices, self.matrices = {}, {}, 0

    def vector(self, value: Node) -> Access:
        """The column of a loop-invariant vector or scalar."""
        if value not in self.offsets:
            self.offsets[value] = self.vectors
            layout = self._layout
            self.vectors += layout.padded(value.shape[0][0]) if value.shape else layout.lanes
        units = self._layout.units(value)
        region = Region(Space.VECTOR, 0)
        return Access(region, self.offsets[value], units, scalar=not value.shape)

    def matrix(self, value: Node) -> Matrix:
        """A matrix of weight rate: the caller's block, or one computed (or summed up) here."""
        layout = self._layout
        rows, columns = (layout.units(value, axis) for axis in (0, 1))
        if value.op == "weight":
            access = layout.weights.access(value)
        else:
            row = layout.padded(value.shape[1][0])
            if value not in self._matrices:
                self._matrices[value] = self.matrices
                self.matrices += rows * row
            access = Access(Region(Space.MATRIX, row), self._matrices[value], columns, columns)
        matrix = Matrix(access, rows, columns)
        self.values[matrix] = value
        return matrix


def reads(phase: Phase) -> Iterable[Node]:
    """Values that a phase reads or stores; some of them again and again."""
    for segment in phase.segments:
        for value in segment.nodes:
            yield from value.args
        for value, _ in segment.writes:
            yield value
