"""The form in which decisions are easy: atoms, blocks, gathered sums, rates."""

from __future__ import annotations

from elman.ir.build import Builder
from elman.ir.graph import Graph, Node
from elman.ir.ops import OPS
from elman.ir.pair import Step
from elman.ir.types import Shape


class _Atoms:
    """Translates nodes as written: vectors and scalars into atoms, matrices into grids of
    blocks."""

    def __init__(self, builder: Builder) -> None:
        self.build = builder
        self.atoms: dict[Node, list[Node]] = {}
        self.grids: dict[Node, list[list[Node]]] = {}

    def leaf(self, leaf: Node) -> list[Node]:
        """Cut a leaf into atoms or blocks; all of them, row by row."""

        def cut(place: tuple[int, ...], shape: Shape) -> Node:
            return self.build.make(leaf.op, (), (leaf.name, *place), shape, leaf.where, leaf.rate)

        if len(leaf.shape) == 2:
            rows, columns = leaf.shape
            self.grids[leaf] = [
                [cut((r, c), ((a,), (b,))) for c, b in enumerate(columns)]
                for r, a in enumerate(rows)
            ]
            return [block for row in self.grids[leaf] for block in row]
        dims = [((atom,),) for atom in leaf.shape[0]] if leaf.shape else [()]
        self.atoms[leaf] = [cut((r,), shape) for r, shape in enumerate(dims)]
        return self.atoms[leaf]

    def visit(self, old: Node) -> None:
        """Translate one node whose arguments are translated."""
        if len(old.shape) == 2:
            self.grids[old] = self._matrix(old)
        else:
            self.atoms[old] = self._vector(old)

    def _vector(self, old: Node) -> list[Node]:
        parts = [atom for arg in old.args for atom in self.atoms.get(arg, ())]
        if old.op == "const":
            return [self.build.const(old.number)]
        if old.op == "split":
            return parts[slice(*old.data)]
        if old.op == "concat":
            return parts
        if old.op == "matmul":
            grid = self.grids[old.args[0]]
            pairs = [list(zip(row, parts, strict=True)) for row in grid]
            return [
                self.build.lin((1.0, product(self.build, block, part)) for block, part in row)
                for row in pairs
            ]
        if old.op == "count":
            return [self.build.make("count", (), old.data)]
        if OPS[old.op].kind == "reduce":
            return [self.build.make(old.op, parts, (), (), old.where)]
        shapes = [((atom,),) for atom in old.shape[0]] if old.shape else [()]
        return [self._applied(old, shape, r) for r, shape in enumerate(shapes)]

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
        """One atom or block, of this shape, of a pointwise op's value."""
        args = tuple(self._pick(arg, row, column) for arg in old.args)
        if old.op != "lin":
            return self.build.apply(old.op, args, old.where)
        made = self.build.lin(zip(old.coefs, args, strict=True), old.bias, shape)
        return self.build.spread(made, shape)

    def _pick(self, arg: Node, row: int, column: int = 0) -> Node:
        """The part of an argument that meets one atom or block; a scalar meets all."""
        if not arg.shape:
            return self.atoms[arg][0]
        return self.grids[arg][row][column] if len(arg.shape) == 2 else self.atoms[arg][row]


def product(build: Builder, block: Node, part: Node) -> Node:
    """``block @ part``, a transposed block read in place."""
    if block.op == "transpose":
        inner = block.args[0]
        return build.make("matmul", (inner, part), ("T",), (inner.shape[1],))
    return build.make("matmul", (block, part), (), (block.shape[0],))


def canonical(graph: Graph, builder: Builder) -> Step:
    """Cut every value into atoms, weights into blocks; gather sums; regroup them by rate.

    rewrite: split(W @ x + b, 3)[0] -> lin(W.0.0 @ x.0, b.0)
             W @ concat(x, h)      -> lin(W.0.1 @ h.0, W.0.0 @ x.0)
    keeps: every value, up to rounding (sums are reordered).
    """
    cut = _Atoms(builder)
    inputs = [part for leaf in graph.inputs for part in cut.leaf(leaf)]
    states = [part for leaf in graph.states for part in cut.leaf(leaf)]
    weights = [part for leaf in graph.weights for part in cut.leaf(leaf)]
    for old in graph.walk():
        if old not in cut.atoms and old not in cut.grids:
            cut.visit(old)
    return Step(
        tuple(inputs),
        tuple(states),
        tuple(weights),
        tuple(part for root in graph.next_states for part in cut.atoms[root]),
        tuple(cut.atoms[graph.output]),
    )
