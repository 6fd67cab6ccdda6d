"""Values of weight rate: computed once per call, before the loop, and gradients of weights after
it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from elman.ir.graph import Node, walk
from elman.ir.ops import OPS
from elman.ir.pair import Pair
from elman.lowered.layout import InvariantMemory, Layout
from elman.lowered.types import (
    Access,
    Const,
    Copy,
    Load,
    MatVec,
    Once,
    Outer,
    Reduce,
    Space,
    Store,
    Transpose,
    Value,
    WeightRate,
)
from elman.lowered.values import across, constant, pointwise

_CONSTANTS = ("const", "count")


def lower_invariants(
    roots: Sequence[Node], known: Sequence[Node], layout: Layout, memory: InvariantMemory
) -> Iterator[WeightRate]:
    """The roots and everything below them, arguments first, but for what is below ``known``
    ones."""
    computed = {*walk(known)}
    for value in walk(roots):
        if value in computed or value.op in _CONSTANTS or value.op == "cotangent":
            continue
        if value.op == "weight":
            if len(value.shape) < 2:
                yield Copy(memory.vector(value), layout.weights.access(value))
        else:
            yield from _numbers_in_memory(value, layout, memory)
            yield _computed(value, layout, memory)


def _numbers_in_memory(
    value: Node, layout: Layout, memory: InvariantMemory
) -> Iterator[WeightRate]:
    """Stores of the constants that a value reads in full from memory, as nothing elementwise
    does."""
    if OPS[value.op].kind == "pointwise":
        return
    for arg in dict.fromkeys(value.args):
        number = constant(arg, layout)
        if number is not None:
            yield Once(1, layout.lanes, Store(memory.vector(arg), number))


def _computed(value: Node, layout: Layout, memory: InvariantMemory) -> WeightRate:
    if value.op == "outer":
        left, right = map(memory.vector, value.args)
        return Outer(memory.matrix(value), left, right)
    if value.op == "matmul":
        matrix, vector = value.args
        source = memory.matrix(matrix)
        return MatVec(memory.vector(value), source, memory.vector(vector), value.transposed)
    if value.op == "transpose":
        return Transpose(memory.matrix(value), memory.matrix(value.args[0]))
    if OPS[value.op].kind == "reduce" and not value.shape:
        columns = tuple(column for arg in value.args for column in _columns(arg, memory))
        return Once(1, 1, Store(memory.vector(value), Reduce(value.op, columns)))
    if value.over_units:
        computed: Value = across(value, memory.vector(value.args[0]), layout)
    else:
        args = tuple(_use(arg, layout, memory) for arg in value.args)
        computed = pointwise(value, args)
    if len(value.shape) == 2:
        target = memory.matrix(value)
        return Once(target.rows, target.access.region.row, Store(target.access, computed))
    units = layout.padded(value.shape[0][0]) if value.shape else layout.lanes
    return Once(1, units, Store(memory.vector(value), computed))


def _columns(value: Node, memory: InvariantMemory) -> Iterator[Access]:
    """The columns of a vector or scalar, or of every row of a matrix."""
    if len(value.shape) < 2:
        yield memory.vector(value)
        return
    matrix = memory.matrix(value)
    region, offset = matrix.access.region, matrix.access.offset
    for row in range(matrix.rows):
        yield Access(region, offset + row * region.row, matrix.columns, matrix.columns)


def _use(value: Node, layout: Layout, memory: InvariantMemory) -> Value:
    number = constant(value, layout)
    return number or Load(
        memory.matrix(value).access if len(value.shape) == 2 else memory.vector(value)
    )


def lower_gradients(
    pair: Pair,
    wants: Collection[str],
    in_place: Collection[Node],
    known: Sequence[Node],
    layout: Layout,
    memory: InvariantMemory,
) -> Iterator[WeightRate]:
    """Gradients of the wanted weights from the finished sums.

    Args:
        pair, wants: whose gradients.
        in_place: blocks whose sums are their gradients.
        known: roots of what has been computed.
        layout, memory: where all lies.
    """
    gradients = [
        (leaf, d)
        for leaf, d in zip(pair.step.weights, pair.d_weights, strict=True)
        if leaf.name in wants and leaf not in in_place
    ]
    roots = dict.fromkeys(d for _, d in gradients if d is not None)
    yield from lower_invariants(list(roots), known, layout, memory)
    for leaf, d in gradients:
        target = layout.weights.access(leaf, Space.D_WEIGHT)
        if d is not None and len(d.shape) == 1 and d.op not in _CONSTANTS:
            yield Copy(target, memory.vector(d))
            continue
        value = Const(0.0) if d is None else _use(d, layout, memory)
        rows = layout.units(leaf) if len(leaf.shape) == 2 else 1
        yield Once(rows, target.units, Store(target, value))
