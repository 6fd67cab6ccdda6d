"""The canonical form: values one gate block wide, flattened sums, rates."""

from __future__ import annotations

from collections import Counter

from elman.ir.build import Builder
from elman.ir.graph import Graph, Node
from elman.ir.ops import OF_MATRICES, OPS, STEPS
from elman.ir.pair import Step
from elman.ir.types import Shape


class _Reads:
    """Readers of each gate block of a graph as written, through splits and concatenations.

    Attributes:
        count: readers of (value, gate block).
        tested: gate blocks that are arguments of a step function or ``stop``.
    """

    def __init__(self, graph: Graph) -> None:
        self.count: Counter[tuple[Node, int]] = Counter()
        self.tested: set[tuple[Node, int]] = set()
        origins: dict[Node, list[tuple[Node, int]]] = {}
        for value in graph.walk():
            blocks = [block for arg in value.args for block in origins.get(arg, ())]
            if len(value.shape) == 2:
                continue  # matrices depend on weights alone: nothing is gathered there
            if value.op == "split":
                origins[value] = blocks[slice(*value.data)]
            elif value.op == "concat":
                origins[value] = blocks
            else:
                width = len(value.shape[0]) if value.shape else 1
                origins[value] = [(value, index) for index in range(width)]
                self.count.update(set(blocks))
            if value.op in STEPS:
                tested = value.args[:1] if value.op == "where" else value.args
                self.tested.update(block for arg in tested for block in origins.get(arg, ()))
        for root in dict.fromkeys(graph.roots):
            self.count.update(set(origins.get(root, ())))


class _GateBlocks:
    """Translates vectors and scalars into gate blocks, and matrices into grids of blocks."""

    def __init__(self, builder: Builder, reads: _Reads) -> None:
        self.build, self.reads = builder, reads
        self.gate_blocks: dict[Node, list[Node]] = {}
        self.grids: dict[Node, list[list[Node]]] = {}

    def leaf(self, leaf: Node) -> list[Node]:
        """Cut a leaf into gate blocks or weight blocks; all of them, row by row."""

        def cut(place: tuple[int, ...], shape: Shape) -> Node:
            return self.build.make(leaf.op, (), (leaf.name, *place), shape, leaf.where, leaf.rate)

        if len(leaf.shape) == 2:
            rows, columns = leaf.shape
            self.grids[leaf] = [
                [cut((r, c), ((a,), (b,))) for c, b in enumerate(columns)]
                for r, a in enumerate(rows)
            ]
            return [block for row in self.grids[leaf] for block in row]
        dims = [((gate_block,),) for gate_block in leaf.shape[0]] if leaf.shape else [()]
        self.gate_blocks[leaf] = [cut((r,), shape) for r, shape in enumerate(dims)]
        return self.gate_blocks[leaf]

    def visit(self, old: Node) -> None:
        """Translate one node whose arguments are translated."""
        if len(old.shape) == 2:
            self.grids[old] = self._matrix(old)
        else:
            self.gate_blocks[old] = self._vector(old)

    def _vector(self, old: Node) -> list[Node]:
        blocks = [gate_block for arg in old.args for gate_block in self.gate_blocks.get(arg, ())]
        if old.op == "const":
            return [self.build.const(old.number)]
        if old.op == "split":
            return blocks[slice(*old.data)]
        if old.op == "concat":
            return blocks
        if old.op == "matmul":
            grid = self.grids[old.args[0]]
            pairs = [list(zip(row, blocks, strict=True)) for row in grid]
            units = [
                self.build.lin(
                    (1.0, product(self.build, weight_block, operand))
                    for weight_block, operand in row
                )
                for row in pairs
            ]
            for index, value in enumerate(units):
                self._round(value, (old, index))
            return units
        if old.op == "reblock":
            return self._reblocked(old, blocks)
        if old.op in OF_MATRICES:
            return [self.build.make(old.op, blocks, old.data, old.shape, old.where)]
        if old.op == "count":
            return [self.build.make("count", (), old.data)]
        if OPS[old.op].kind == "reduce" and not old.shape:
            return [self.build.make(old.op, blocks, (), (), old.where)]
        if OPS[old.op].kind in ("reduce", "spread", "scan"):
            return [self._over_units(old, blocks, row) for row in range(len(old.shape[0]))]
        shapes = [((gate_block,),) for gate_block in old.shape[0]] if old.shape else [()]
        return [self._applied(old, shape, r) for r, shape in enumerate(shapes)]

    def _reblocked(self, old: Node, blocks: list[Node]) -> list[Node]:
        """Several gate blocks as one, or one as several."""
        (dim,), (parts,) = old.shape, old.args[0].shape
        if len(blocks) == 1:
            return [
                self.build.make("cut", blocks, dim[:row], ((part,),), old.where)
                for row, part in enumerate(dim)
            ]
        wide = [self.build.broadcast(v, ((part,),)) for v, part in zip(blocks, parts, strict=True)]
        places = [
            self.build.make("place", (block,), parts[:row], (dim,), old.where)
            for row, block in enumerate(wide)
        ]
        value = self.build.lin((1.0, place) for place in places)
        self._round(value, (old, 0))
        return [value]

    def _over_units(self, old: Node, blocks: list[Node], row: int) -> Node:
        """One gate block of a grouped reduction, a spread or a scan."""
        shape = ((old.shape[0][row],),)
        if OPS[old.op].kind == "reduce":
            return self.build.make(old.op, blocks[row : row + 1], (), shape, old.where)
        if old.op == "cumsum":
            within = self.build.make("cumsum", blocks[row : row + 1], old.data, shape, old.where)
            rest = blocks[row + 1 :] if old.backward_in_units else blocks[:row]
            if not rest:
                return within
            value = self.build.lin([(1.0, within), (1.0, self.build.make("sum", rest, (), ()))])
            self._round(value, (old, row))
            return value
        arg = blocks[0] if not old.args[0].shape else blocks[row]
        if old.op == "spread" and not arg.shape:
            return self.build.broadcast(arg, shape)
        before = old.shape[0][:row] if old.op == "one_hot" and not arg.shape else ()
        return self.build.make(old.op, (arg,), before, shape, old.where)

    def _matrix(self, old: Node) -> list[list[Node]]:
        if old.op == "split":
            return self.grids[old.args[0]][slice(*old.data)]
        if old.op == "concat":
            return [row for arg in old.args for row in self.grids[arg]]
        if old.op == "transpose":
            columns = zip(*self.grids[old.args[0]], strict=True)
            return [
                [self.build.make("transpose", (block,), (), block.shape[::-1]) for block in column]
                for column in columns
            ]
        rows, columns = old.shape
        return [
            [self._applied(old, ((a,), (b,)), r, c) for c, b in enumerate(columns)]
            for r, a in enumerate(rows)
        ]

    def _applied(self, old: Node, shape: Shape, row: int, column: int = 0) -> Node:
        """One gate block or block, of this shape, of a pointwise op's value."""
        args = tuple(self._pick(arg, row, column) for arg in old.args)
        if (old, row) in self.reads.tested:
            for arg in args:
                self.build.keep(arg)
        if old.op == "uniform":
            value = self.build.make(old.op, args, (*old.data, row), shape, old.where)
        elif old.op != "lin":
            value = self.build.apply(old.op, args, old.where)
        else:
            value = self.build.lin(zip(old.coefs, args, strict=True), old.bias, shape)
            value = self.build.broadcast(value, shape)
        self._round(value, (old, row))
        return value

    def _round(self, value: Node, place: tuple[Node, int]) -> None:
        """Decide whether a value is rounded as written or may be flattened into its reader."""
        is_shared = self.reads.count[place] > 1
        if is_shared or place in self.reads.tested or not self._has_product(value):
            self.build.keep(value)

    def _has_product(self, value: Node) -> bool:
        if value.op == "matmul":
            return True
        return self.build.open(value) and any(self._has_product(arg) for arg in value.args)

    def _pick(self, arg: Node, row: int, column: int = 0) -> Node:
        """The part of an argument that belongs to one gate block or block; a scalar is its own."""
        if not arg.shape:
            return self.gate_blocks[arg][0]
        return self.grids[arg][row][column] if len(arg.shape) == 2 else self.gate_blocks[arg][row]


def product(build: Builder, block: Node, part: Node) -> Node:
    """``block @ part``, a transposed block read in place."""
    if block.op == "transpose":
        inner = block.args[0]
        return build.make("matmul", (inner, part), ("T",), (inner.shape[1],))
    return build.make("matmul", (block, part), (), (block.shape[0],))


def canonical(graph: Graph, builder: Builder) -> Step:
    """Cut every value into gate blocks, weights into blocks; gather sums; regroup them by rate.

    rewrite: split(W @ x + b, 3)[0] -> lin(W.0.0 @ x.0, b.0)
             W @ concat(x, h)      -> lin(W.0.1 @ h.0, W.0.0 @ x.0)
    keeps: every value, up to rounding. The terms of a sum are gathered and reordered only if one is
        a product, whose own sum has no order. A sum without a product, a sum that several values
        read, and the argument of a step function or ``stop`` are rounded as written: a spike is 1
        or 0, a comparison gives the same result wherever it stands, (x + M) - M is not x.
    """
    return cut(graph, builder)[0]


def cut(graph: Graph, builder: Builder) -> tuple[Step, dict[Node, list[Node]]]:
    """The canonical form, and the gate blocks of every vector and scalar as written."""
    gate_blocks = _GateBlocks(builder, _Reads(graph))
    inputs = [part for leaf in graph.inputs for part in gate_blocks.leaf(leaf)]
    states = [part for leaf in graph.states for part in gate_blocks.leaf(leaf)]
    weights = [part for leaf in graph.weights for part in gate_blocks.leaf(leaf)]
    for old in graph.walk():
        if old not in gate_blocks.gate_blocks and old not in gate_blocks.grids:
            gate_blocks.visit(old)
    builder.keep_all()  # a backward reads the forward's values, so it may not flatten them
    step = Step(
        tuple(inputs),
        tuple(states),
        tuple(weights),
        tuple(part for root in graph.next_states for part in gate_blocks.gate_blocks[root]),
        tuple(part for root in graph.outputs for part in gate_blocks.gate_blocks[root]),
    )
    return step, gate_blocks.gate_blocks
