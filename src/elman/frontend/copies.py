"""Build the graph of all heads from the graph of one head.

A divided dim has each gate block once per head, head by head. A
matrix of which both dims are divided is block-diagonal: stored as its blocks, one above the other,
with the columns of one head.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from elman.frontend.dims import Cuts
from elman.frontend.heads import Pieces, Share, joined, pieces
from elman.frontend.signature import Declared
from elman.ir.graph import Graph, Node, node, with_args
from elman.ir.ops import OPS
from elman.ir.types import SCALAR, Dim, Shape


class Signature(NamedTuple):
    """Declared arguments and results of a cell, of one head or of all heads.

    Attributes:
        inputs: per step, then static ones.
        states, weights, outputs: as declared.
    """

    inputs: tuple[Declared, ...]
    states: tuple[Declared, ...]
    weights: tuple[Declared, ...]
    outputs: tuple[Declared, ...]


class Copies(NamedTuple):
    """All heads of a cell.

    Attributes:
        graph: of all of them.
        states, outputs: names of those without a divided dim that differ between heads.
    """

    graph: Graph
    states: frozenset[str]
    outputs: frozenset[str]


def copies(graph: Graph, declared: Signature, share: Share, cuts: Cuts) -> Copies:
    """The graph of all heads.

    Args:
        graph: of one head.
        declared: what the cell without heads declares.
        share: what one head has of it.
        cuts: how numbers are cut in the graph of one head.
    """
    states = frozenset[str]()
    while True:  # a scalar state is one per head if what is computed for it is
        writer = _Writer(graph, declared, share, cuts, states)
        roots = dict(zip(declared.states, graph.next_states, strict=True))
        varying = writer.various(roots)
        if varying <= states:
            break
        states |= varying
    outputs = dict(zip(declared.outputs or declared.states[:1], graph.outputs, strict=True))
    return Copies(
        Graph(
            writer.inputs,
            writer.states,
            writer.weights,
            tuple(writer.root(entry, root) for entry, root in roots.items()),
            tuple(writer.root(entry, root) for entry, root in outputs.items()),
        ),
        states,
        writer.various(outputs) if declared.outputs else frozenset(),
    )


def whole_entry(entry: Declared, share: Share, per_head: bool = False) -> Declared:
    """A declared argument, or a result, as all heads have it.

    Args:
        entry: of the cell without heads.
        share: what one head has of it.
        per_head: whether each head has one of its own, though no dim is divided.
    """
    if per_head:
        return Declared(entry.name, (_times(entry.shape[0] if entry.shape else (1,), share.heads),))
    return Declared(entry.name, _whole_shape([pieces(d, share, {}) for d in entry.shape], share))


def _whole_shape(dims: list[Pieces], share: Share) -> Shape:
    """Shape for all heads; a block-diagonal matrix keeps the columns of one head."""
    if len(dims) == 2 and all(_is_divided(dim) for dim in dims):
        return joined(dims[0], share.heads), joined(dims[1], 1)
    return tuple(joined(dim, share.heads) for dim in dims)


def _is_divided(dim: Pieces) -> bool:
    return any(divided for _, divided in dim)


def _times(dim: Dim, heads: int) -> Dim:
    """Each gate block once per head."""
    return tuple(gate_block for gate_block in dim for _ in range(heads))


class _Value(NamedTuple):
    """A value of one head's formula for all heads: shared by them, stacked (each gate block head by
    head), or one value for each head."""

    shared: Node | None = None
    stacked: Node | None = None
    each: tuple[Node, ...] = ()


class _Writer:
    """Translates the graph of one head into that of all heads, value by value.

    Attributes:
        inputs, states, weights: leaves of all heads.
    """

    def __init__(
        self,
        graph: Graph,
        declared: Signature,
        share: Share,
        cuts: Cuts,
        own_states: frozenset[str],
    ) -> None:
        self.share, self.heads, self.cuts = share, share.heads, cuts
        self.values: dict[Node, _Value] = {}
        self.results: dict[tuple[Node, tuple[tuple[Dim, bool], ...]], Node] = {}

        def leaves(entries: Iterable[Declared], nodes: tuple[Node, ...]) -> tuple[Node, ...]:
            pairs = zip(entries, nodes, strict=True)
            return tuple(
                self._leaf(e, n, n.op == "state" and e.name in own_states) for e, n in pairs
            )

        self.inputs = leaves(declared.inputs, graph.inputs)
        self.states = leaves(declared.states, graph.states)
        self.weights = leaves(declared.weights, graph.weights)
        for old in graph.walk():
            if old not in self.values:
                self.values[old] = self._value(old)

    def various(self, roots: dict[Declared, Node]) -> frozenset[str]:
        """Names of the results without a divided dim that differ from head to head."""
        return frozenset(
            entry.name
            for entry, root in roots.items()
            if self.values[root].shared is None and not any(map(_is_divided, self._dims(entry)))
        )

    def root(self, entry: Declared, old: Node) -> Node:
        """A result for all heads."""
        value, dims = self.values[old], self._dims(entry)
        if not any(map(_is_divided, dims)):
            return self._stack(old) if value.shared is None else value.shared
        (dim_pieces,) = dims
        key = (old, tuple(dim_pieces))
        if key not in self.results:
            self.results[key] = self._result(old, dim_pieces)
        return self.results[key]

    def _result(self, old: Node, dim_pieces: Pieces) -> Node:
        """A vector whose gate blocks are all divided, piece by piece and head by head."""
        if all(len(part) == 1 for part, _ in dim_pieces):
            return self._stack(old)
        head_nodes, blocks, at = self._per_head(old), list[Node](), 0
        for part, _ in dim_pieces:
            blocks += [_cut(head, at, at + len(part)) for head in head_nodes]
            at += len(part)
        return _concat(blocks)

    def _dims(self, entry: Declared) -> list[Pieces]:
        return [pieces(dim, self.share, self.cuts) for dim in entry.shape]

    def _leaf(self, entry: Declared, old: Node, per_head: bool) -> Node:
        """Make a leaf for all heads, and record each head's share."""
        dims = self._dims(entry)
        shape = (_times((1,), self.heads),) if per_head else _whole_shape(dims, self.share)
        leaf = node(old.op, (), old.data, shape, old.where)
        divided = [_is_divided(dim) for dim in dims]
        if per_head:
            self.values[old] = _Value(stacked=leaf)
        elif not any(divided):
            self.values[old] = _Value(shared=leaf)
        elif divided[0] and all(len(part) == 1 and is_divided for part, is_divided in dims[0]):
            self.values[old] = _Value(stacked=leaf)
        elif divided[0]:
            self.values[old] = _Value(each=self._pieces_of(leaf, dims[0]))
        else:
            columns = self._pieces_of(_transposed(leaf), dims[1])
            self.values[old] = _Value(each=tuple(_transposed(rows) for rows in columns))
        return leaf

    def _pieces_of(self, leaf: Node, dim_pieces: Pieces) -> tuple[Node, ...]:
        """Split a leaf along its rows among heads."""
        head_pieces: list[list[Node]] = [[] for _ in range(self.heads)]
        at = 0
        for part, divided in dim_pieces:
            for of_head in head_pieces:
                of_head.append(_cut(leaf, at, at + len(part)))
                at += len(part) if divided else 0
            at += 0 if divided else len(part)
        return tuple(_concat(of_head) for of_head in head_pieces)

    def _value(self, old: Node) -> _Value:
        """Translate a value whose arguments are translated."""
        args = [self.values[arg] for arg in old.args]
        common = [arg.shared for arg in args if arg.shared is not None]
        if old.op == "draw":  # each head draws its own
            return _Value(stacked=node("draw", (), old.data, self._shape(old), old.where))
        if len(common) == len(args):
            return _Value(shared=with_args(old, tuple(common)))
        if old.op == "matmul" and args[0].stacked is not None:
            return _Value(stacked=self._product(old, args[0].stacked))
        if self._goes_side_by_side(old):
            data = tuple(at * self.heads for at in old.data) if old.op == "split" else old.data
            pairs = zip(old.args, args, strict=True)
            operands = [self._stack(a) if a.shape else value.shared for a, value in pairs]
            nodes = tuple(operand for operand in operands if operand is not None)
            return _Value(stacked=node(old.op, nodes, data, self._shape(old), old.where))
        return _Value(each=self._copied(old))

    def _copied(self, old: Node) -> tuple[Node, ...]:
        """One copy per head, of each head's arguments."""
        args = [self._per_head(arg) for arg in old.args]
        return tuple(
            node(old.op, [arg[head] for arg in args], old.data, old.shape, old.where)
            for head in range(self.heads)
        )

    def _goes_side_by_side(self, old: Node) -> bool:
        """Whether an op on stacked values equals the op head by head: it is elementwise, without
        scalars that differ between heads."""
        moves = old.op in ("split", "concat", "training")
        return (
            bool(old.shape)
            and (moves or OPS[old.op].kind == "pointwise")
            and all(arg.shape or self.values[arg].shared is not None for arg in old.args)
        )

    def _product(self, old: Node, matrix: Node) -> Node:
        """A product with the matrices of all heads, one above the other."""
        vector = self.values[old.args[1]].shared
        if vector is not None:
            return node("matmul", (matrix, vector), (), (matrix.shape[0],), old.where)
        head_nodes = self._per_head(old.args[1])
        return _concat(
            node(
                "matmul",
                (_cut(matrix, row, row + 1), head_nodes[row % self.heads]),
                (),
                ((part,),),
                old.where,
            )
            for row, part in enumerate(matrix.shape[0])
        )

    def _shape(self, old: Node) -> Shape:
        """The shape of a value of all heads; a scalar of each is a vector."""
        rows, *columns = old.shape or ((1,),)
        return (_times(rows, self.heads), *columns)

    def _stack(self, old: Node) -> Node:
        """Stack a value of all heads, each gate block head by head."""
        value = self.values[old]
        if value.stacked is not None:
            return value.stacked
        if old.shape:
            head_nodes = self._per_head(old)
        else:
            head_nodes = [
                node("spread", (head,), (), ((1,),), head.where) for head in self._per_head(old)
            ]
        rows = range(len(head_nodes[0].shape[0]))
        stacked = _concat(_cut(head, row, row + 1) for row in rows for head in head_nodes)
        self.values[old] = value._replace(stacked=stacked)
        return stacked

    def _per_head(self, old: Node) -> tuple[Node, ...]:
        """The values of the heads."""
        value = self.values[old]
        if value.shared is not None:
            return (value.shared,) * self.heads
        if not value.each:
            assert value.stacked is not None, "a value of all heads"
            value = value._replace(each=self._split_heads(value.stacked, bool(old.shape)))
            self.values[old] = value
        return value.each

    def _split_heads(self, stacked: Node, is_vector: bool) -> tuple[Node, ...]:
        count = len(stacked.shape[0])
        head_nodes = [
            _concat(_cut(stacked, row, row + 1) for row in range(head, count, self.heads))
            for head in range(self.heads)
        ]
        if is_vector:
            return tuple(head_nodes)
        return tuple(node("sum", (head,), (), SCALAR, head.where) for head in head_nodes)


def _cut(value: Node, start: int, end: int) -> Node:
    """Slice gate blocks of a vector, or of the rows of a matrix."""
    if (start, end) == (0, len(value.shape[0])):
        return value
    shape = (value.shape[0][start:end], *value.shape[1:])
    return node("split", (value,), (start, end), shape, value.where)


def _concat(values: Iterable[Node]) -> Node:
    blocks = list(values)
    if len(blocks) == 1:
        return blocks[0]
    dim = tuple(gate_block for block in blocks for gate_block in block.shape[0])
    return node("concat", blocks, (), (dim, *blocks[0].shape[1:]), blocks[0].where)


def _transposed(matrix: Node) -> Node:
    return node("transpose", (matrix,), (), matrix.shape[::-1], matrix.where)
