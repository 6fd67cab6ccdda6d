"""Layout of gate blocks in the arrays of a call, the same for every engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elman.ir.graph import Node
from elman.ir.types import GateBlock, gate_block_size, is_matrix
from elman.plan.build import output_is_state
from elman.plan.program import Buffer, Program


@dataclass(frozen=True)
class Column:
    """A gate block's place in a row: which of the caller's arrays, offset and width (elements)."""

    array: int
    offset: int
    width: int


class Columns:
    """Columns of a program's inputs, states and output, one per gate block.

    Attributes:
        matrices: indices of states that are matrices and change, of which the first step of each
            chunk is kept.
        held: indices of pass-through states that are no outputs, stored as one row per sample.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.sizes = program.spec.sizes
        step = program.pair.step
        self.inputs = self._declared(step.inputs)
        self.states = self._declared(step.states)
        self.outputs = self._columns([(0, leaf) for leaf in step.outputs])
        self.input_widths = self._widths(self.inputs)
        self.state_widths = self._widths(self.states)
        self.output_width = sum(column.width for column in self.outputs)
        self.matrices = frozenset(
            column.array
            for column, leaf in zip(self.states, step.states, strict=True)
            if is_matrix(leaf) and leaf not in step.held
        )
        self.held = self._held()

    def _held(self) -> frozenset[int]:
        pair = self.program.pair
        changing = {
            column.array
            for column, leaf in zip(self.states, pair.step.states, strict=True)
            if leaf not in pair.step.held
        }
        arrays = {column.array for column in self.states} - changing
        return frozenset(arrays - {0} if output_is_state(pair) else arrays)

    def size(self, gate_block: GateBlock) -> int:
        """Units of a gate block."""
        return gate_block_size(gate_block, self.sizes)

    def column(self, buffer: Buffer) -> Column:
        """The column of a buffer in a caller's array."""
        table = {
            "input": self.inputs,
            "d_input": self.inputs,
            "state": self.states,
            "next": self.states,
            "output": self.outputs,
            "d_output": self.outputs,
        }
        return table[buffer.where][buffer.index]

    def _declared(self, leaves: Sequence[Node]) -> list[Column]:
        names = list(dict.fromkeys(leaf.data[0] for leaf in leaves))
        return self._columns([(names.index(leaf.data[0]), leaf) for leaf in leaves])

    def _columns(self, leaves: Iterable[tuple[int, Node]]) -> list[Column]:
        used: dict[int, int] = {}
        columns: list[Column] = []
        for array, leaf in leaves:
            width = self.size(leaf.shape[0][0]) if leaf.shape else 1
            offset = used.get(array, 0)
            columns.append(Column(array, offset, width))
            used[array] = offset + width
        return columns

    def _widths(self, columns: Iterable[Column]) -> list[int]:
        total: dict[int, int] = {}
        for column in columns:
            total[column.array] = total.get(column.array, 0) + column.width
        return [total[array] for array in sorted(total)]
