"""Values of a graph's node, whatever rate it has."""

from __future__ import annotations

from collections.abc import Sequence

from elman.ir.draws import stream
from elman.ir.graph import Node
from elman.ir.ops import OF_PARTS, OPS
from elman.ir.types import dim_size
from elman.lowered.layout import Layout
from elman.lowered.types import Access, Across, Affine, Axis, Const, Op, Value


def constant(value: Node, layout: Layout) -> Const | None:
    """A number, if the value is one."""
    if value.op == "const":
        return Const(value.number)
    if value.op == "count":
        return Const(float(dim_size(value.data, layout.sizes)))
    return None


def pointwise(value: Node, args: Sequence[Value]) -> Value:
    """An elementwise value of its arguments."""
    if value.op == "lin":
        return Affine(value.coefs, value.bias, tuple(args))
    return Op(value.op, tuple(args), stream(*value.data) if value.op == "uniform" else 0)


def axis_of_sums(value: Node) -> Axis | None:
    """The axis along which the sums of a matrix lie; None for one sum of all elements."""
    if value.op == "fold":
        return "columns"
    return "rows" if value.shape else None


def across(value: Node, column: Access, layout: Layout) -> Across:
    """A vector that reads other units of its argument than its own."""
    (arg,) = value.args
    if value.op == "cumsum":
        units = layout.units(value)
        return Across(value.op, column, 1, units, reverse=value.backward_in_units)
    shift = sum(map(layout.size, value.data)) if value.op in ("one_hot", *OF_PARTS) else 0
    if value.op in OF_PARTS:
        return Across(value.op, column, 1, min(map(layout.units, (value, arg))), shift)
    groups, vector = (value, arg) if OPS[value.op].kind == "reduce" else (arg, value)
    count = layout.units(groups)
    return Across(value.op, column, count, layout.units(vector) // count, shift)
