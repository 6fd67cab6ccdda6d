"""Segments of a program's phase -> lowered segments: a place in memory for every value.

segment with  n = tanh(W @ x + b),  written to the tape
->  Part(H, products=[W @ in0], body=[Let(Acc 0.0), Let(Load b), Let(Affine), Let(Op tanh),
         Store(tape)])
"""

from __future__ import annotations

from elman.ir.graph import Node
from elman.ir.ops import OF_PARTS, OPS, SPREADS
from elman.ir.pair import loop_invariant
from elman.ir.types import axes_of, is_matrix
from elman.lowered.groups import roll
from elman.lowered.layout import InvariantMemory, Layout
from elman.lowered.types import (
    Acc,
    Access,
    Accumulate,
    Affine,
    Along,
    Let,
    Load,
    Moved,
    Multiply,
    Part,
    Phase,
    Prefetch,
    Product,
    Reduce,
    Ref,
    Region,
    Segment,
    Space,
    Statement,
    Store,
    Term,
    Value,
)
from elman.lowered.values import across, axis_of_sums, constant, pointwise
from elman.plan import program as planned
from elman.plan.program import Buffer, Bundle
from elman.plan.schedule import Blocks
from elman.plan.segments import accumulates

_CALLERS = {
    "input": Space.INPUT,
    "state": Space.STATE,
    "next": Space.STATE,
    "output": Space.OUTPUT,
    "d_output": Space.D_OUTPUT,
    "d_input": Space.D_INPUT,
}


class PhaseLowering:
    """Lowers the segments of one phase."""

    def __init__(
        self,
        phase: planned.Phase,
        layout: Layout,
        memory: InvariantMemory,
        chunk: tuple[list[int], int],
        *,
        loop: bool,
        direction: str,
        gathers_always: bool,
        spikes: frozenset[Node],
        blocks: Blocks,
    ) -> None:
        self.phase, self.layout, self.memory, self.chunk = phase, layout, memory, chunk
        self.loop, self.gathers_always, self.spikes = loop, gathers_always, spikes
        self.forward, self.blocks = direction == "forward", blocks
        self.scratch, self.scratch_row = layout.slots(phase.scratch)
        self.scalars = sum(1 for buffer in phase.buffers.values() if buffer.where == "scalar")

    def lowered(self, name: str) -> Phase:
        """The phase as data."""
        segments = tuple(self._segment(segment) for segment in self.phase.segments)
        return Phase(name, segments, self.scratch_row, self.scalars)

    # memory

    def access(self, buffer: Buffer, value: Node) -> Access:
        """The column of a value in its buffer."""
        layout, index = self.layout, buffer.index
        units, scalar, width = layout.units(value), not value.shape, None
        space, row, array, offset, step, always = Space.SCALAR, 0, 0, 0, 0, False
        if buffer.where in _CALLERS:
            column = layout.column(buffer)
            space, array, offset = _CALLERS[buffer.where], column.array, column.offset
            width = None if scalar else column.width
            if space is Space.OUTPUT:
                row = layout.output_width
            elif space is Space.D_INPUT:
                row = layout.input_widths[array]
            elif space is Space.STATE:
                row, step = layout.state_widths[array], int(buffer.where == "next")
                if array in layout.matrices:
                    assert self.loop, "matrices are at hand in the loop alone"
                    space, row = Space.LOCAL if self.forward else Space.REPLAYED, 0
                elif not step and not self.loop:
                    space, always = Space.GATHERED, array in layout.held
                    assert self.gathers_always or not always, "its rows are in no workspace"
        elif buffer.where in ("carry", "d_state"):
            offset, step = layout.carry[index], int(buffer.where == "d_state")
            space, row = Space.CARRY, layout.carry_row
            if layout.summed[index]:
                space, row, step = Space.SUMMED, layout.summed_row, 0
        elif buffer.where == "tape":
            space, row, offset = Space.TAPE, layout.tape_row, layout.tape[index]
        elif buffer.where == "chunk":
            space, row, offset = Space.CHUNK, self.chunk[1], self.chunk[0][index]
        elif buffer.where == "scratch":
            space, row, offset = Space.SCRATCH, self.scratch_row, self.scratch[index]
        else:
            row, offset = self.scalars, index
        region = Region(space, row, array, not self.loop, always)
        return Access(region, offset, units, width, step, scalar)

    def column(self, value: Node) -> Access:
        """The memory in which all units of a value lie."""
        if loop_invariant(value):
            return self.memory.vector(value)
        return self.access(self.phase.buffers[value], value)

    def load(self, value: Node) -> Value:
        """A value that the body does not compute."""
        return constant(value, self.layout) or Load(self.column(value))

    # statements

    def _segment(self, segment: planned.Segment) -> Segment:
        scalars = [*self._scalar_values(segment), *self._scalar_stores(segment)]
        parts = tuple(self._part(part) for part in segment.parts)
        return Segment(segment.sync, tuple(scalars), parts)

    def _scalar_values(self, segment: planned.Segment) -> list[Store]:
        """Reductions and arithmetic on scalars, in every row."""
        stores: list[Store] = []
        means: dict[tuple[Node, ...], Value] = {}
        for value in segment.scalars:
            target = self.access(self.phase.buffers[value], value)
            if OPS[value.op].kind == "reduce":
                columns = tuple(self.column(arg) for arg in value.args)
                mean = means.get(value.args) if value.op == "var" else None
                stores.append(Store(target, Reduce(value.op, columns, mean)))
                if value.op == "mean":
                    means[value.args] = Load(target)
            else:
                stores.append(Store(target, pointwise(value, [*map(self.load, value.args)])))
        return stores

    def _scalar_stores(self, segment: planned.Segment) -> list[Store]:
        return [
            Store(self.access(buffer, value), self.load(value), lead=True)
            for value, buffer in segment.scalar_writes
            if not self.needless(buffer)
        ]

    def needless(self, target: Buffer) -> bool:
        """Whether a store would copy a row onto itself."""
        return target.where == "next" and self.layout.column(target).array in self.layout.held

    def _part(self, part: planned.Part) -> Part:
        products = tuple(self._product(part, bundle) for bundle in part.bundles)
        accs = {
            acc.into: Acc(number, index)
            for number, bundle in enumerate(part.bundles)
            for index, acc in enumerate(bundle.accs)
        }
        terms = {term for b in part.bundles for acc in b.accs for term in acc.terms}
        body = self._body(part, accs, terms - accs.keys())
        axes = axes_of(part.gate_block, self.layout.sizes)
        if axes is not None:
            return Part(part.gate_block, products, body, axes=axes)
        return roll(Part(part.gate_block, products, body), self.blocks.rolled_statements)

    def _product(self, part: planned.Part, bundle: Bundle) -> Product:
        operands = tuple(self.access(self.phase.buffers[v], v) for v in bundle.operands)
        accs = tuple(
            tuple(Term(self.memory.matrix(term.args[0]), term.transposed) for term in acc.terms)
            for acc in bundle.accs
        )
        spikes = tuple(value in self.spikes for value in bundle.operands)
        return Product(part.gate_block, operands, accs, spikes)

    def _body(
        self, part: planned.Part, accs: dict[Node, Acc], merged: set[Node]
    ) -> tuple[Statement, ...]:
        """One vector of units in one row: loads, one value per node, stores.

        ``merged``: products that are terms of an accumulation into another value.
        """
        places: dict[Node, Ref] = {}
        reduced: dict[Node, Ref] = {}
        multiplied: list[Node] = []
        statements: list[Statement] = []

        def let(node: Node, value: Value) -> Ref:
            places[node] = Ref(len(places))
            statements.append(Let(value))
            return places[node]

        def use(node: Node) -> Ref:
            if node in places:
                return places[node]
            ref = let(node, self.load(node))
            statements.extend(self._prefetch(node, self.phase.buffers.get(node), write=False))
            return ref

        for node in part.nodes:
            if node in merged:
                continue
            acc = accs.get(node)
            if node.op == "matmul":
                assert acc is not None, "a product belongs to an accumulation"
                let(node, acc)
            elif node.op == "lin" and acc is not None:
                pairs = [
                    (coef, arg)
                    for coef, arg in zip(node.coefs, node.args, strict=True)
                    if arg not in merged
                ]
                refs = [use(arg) for _, arg in pairs]
                coefs = tuple(coef for coef, _ in pairs)
                affine = Affine((1.0, *coefs), node.bias, (acc, *refs))
                let(node, affine if refs or node.bias else acc)
            elif accumulates(node):
                reduced[node] = use(node.args[0])
            elif node.op == "bmm":
                multiplied.append(node)
            elif is_matrix(node) and node.op in SPREADS:
                let(node, self._along(node))
            elif is_matrix(node) and OPS[node.op].kind == "scan":
                let(node, self._moved(node))
            elif node.over_units:
                let(node, across(node, self.column(node.args[0]), self.layout))
            else:
                let(node, pointwise(node, [use(arg) for arg in node.args]))
        stores: list[Statement] = [
            Store(self.access(buffer, node), use(node))
            for node, buffer in part.writes
            if node not in (*reduced, *multiplied) and not self.needless(buffer)
        ]
        for node in multiplied:
            targets = tuple(self.access(buffer, node) for v, buffer in part.writes if v is node)
            stores.append(self._multiply(node, targets))
        for node, value in reduced.items():
            targets = tuple(self.access(buffer, node) for v, buffer in part.writes if v is node)
            stores.append(Accumulate(targets, value, axis_of_sums(node)))
        prefetches = [p for v, b in part.writes for p in self._prefetch(v, b, write=True)]
        return (*statements, *stores, *prefetches)

    def _axes(self, value: Node) -> tuple[int, int]:
        """Rows and columns of a matrix per sample."""
        axes = axes_of(value.shape[0][0], self.layout.sizes)
        assert axes is not None, "a matrix per sample"
        return axes

    def _moved(self, value: Node) -> Moved:
        """A matrix made of elements of another one that lie elsewhere in it."""
        (arg,) = value.args
        rows, columns = self._axes(arg)
        if value.op in OF_PARTS:
            down = sum(map(self.layout.size, value.data)) // columns
        else:
            down = sum(value.data)
        return Moved(value.op, self.column(arg), rows, columns, down)

    def _multiply(self, value: Node, targets: tuple[Access, ...]) -> Multiply:
        """A product of two matrices per sample."""
        left, right = value.args
        rows, columns = self._axes(value)
        inner = self._axes(left)["L" not in value.data]
        transposed = ("L" in value.data, "R" in value.data)
        sides = (self.column(left), self.column(right))
        return Multiply(targets, *sides, rows, inner, columns, transposed)

    def _along(self, value: Node) -> Value:
        """A vector, or a scalar, at every element of a matrix."""
        (arg,) = value.args
        if not arg.shape:
            return self.load(arg)
        return Along(self.column(arg), "columns" if value.op == "tile" else "rows")

    def _prefetch(self, value: Node, buffer: Buffer | None, *, write: bool) -> list[Prefetch]:
        """Prefetches of columns that the next step stores (forward) or loads (backward).

        The tape of a long sequence is in no cache when a direction comes to it, and between two
        steps only products run. Of a ragged batch it is a guess, and behind the end nothing.
        """
        if not self.loop or write != self.forward or buffer is None:
            return []
        if not value.shape or is_matrix(value):
            return []
        if buffer.where not in ("tape", *(() if write else ("d_output",))):
            return []
        return [Prefetch(self.access(buffer, value), write)]
