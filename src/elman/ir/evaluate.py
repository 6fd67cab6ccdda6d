"""Semantics of every op: an interpreter over any array namespace (torch, or numpy in tests).

A vector is an array [..., n], a scalar [...]; leading axes are batch (and time) and are the
caller's. Weight matrices are [rows, cols], weight vectors [n], scalar weights [].
"""

# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# (an array namespace is any module or object with these functions)

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import prod
from operator import itemgetter
from typing import Any

from elman.ir.draws import SCALE, drawn, stream
from elman.ir.graph import Node, walk
from elman.ir.ops import COMPARISONS, OF_MATRICES, OF_PARTS, OPS
from elman.ir.types import axes_of, dim_size, shape_size

Array = Any


def _lin(xp: Any, node: Node, *terms: Array) -> Array:
    scaled = [term if coef == 1 else coef * term for coef, term in zip(node.coefs, terms)]
    if node.bias or len(scaled) < 2:
        # one term alone is added to what changes no number, so that it is an array anew
        scaled.insert(0, node.bias or -0.0)
    total: Any = scaled[0]
    for term in scaled[1:]:
        total = total + term
    return total


def _namesake(name: str) -> Callable[..., Array]:
    def apply(xp: Any, node: Node, *args: Array) -> Array:
        return getattr(xp, name)(*args)

    return apply


def _compare(name: str) -> Callable[..., Array]:
    def apply(xp: Any, node: Node, a: Array, b: Array) -> Array:
        return xp.as_float(getattr(xp, name)(a, b), a)

    return apply


def _matmul(xp: Any, node: Node, matrix: Array, vector: Array) -> Array:
    return vector @ (matrix if node.transposed else xp.swapaxes(matrix, -1, -2))


def _one_hot(xp: Any, node: Node, index: Array, units: Array, width: int) -> Array:
    return xp.as_float(xp.eq(units % width if node.args[0].shape else units, index), index)


def _cumsum(xp: Any, node: Node, v: Array) -> Array:
    return xp.flip(xp.cumsum(xp.flip(v))) if node.backward_in_units else xp.cumsum(v)


def _place(xp: Any, node: Node, v: Array, first: int, size: int) -> Array:
    """``v`` at the units from ``first`` on of so many, -0 elsewhere."""
    zero = xp.constant(-0.0)
    counts = first, size - first - v.shape[-1]
    before, behind = (xp.broadcast_to(zero, (*v.shape[:-1], count)) for count in counts)
    return xp.concat((before, v, behind), -1)


def units_of(xp: Any, node: Node, values: tuple[Array, ...], dims: Mapping[str, int]) -> Array:
    """Concatenate the units of a reduction's arguments on the last axis [..., n], or split into
    groups [..., groups, n / groups]; matrices of weights are flattened row by row."""
    flat = [
        value.reshape(-1) if len(arg.shape) == 2 else value
        for arg, value in zip(node.args, values, strict=True)
    ]
    units = xp.concat(xp.broadcast(flat, -1), -1)
    if not node.shape:
        return units
    groups = dim_size(node.shape[0], dims)
    if node.op == "fold":
        rows = units.reshape(*units.shape[:-1], units.shape[-1] // groups, groups)
        return xp.swapaxes(rows, -1, -2)
    return units.reshape(*units.shape[:-1], groups, units.shape[-1] // groups)


_NAMESAKES = {op.name for op in OPS.values() if op.kind in ("pointwise", "reduce")} - {"uniform"}

# reductions take units on the last axis
MEANING: dict[str, Callable[..., Array]] = {
    **{name: _namesake(name) for name in _NAMESAKES},
    "lin": _lin,
    "add": lambda xp, node, a, b: a + b,
    "sub": lambda xp, node, a, b: a - b,
    "neg": lambda xp, node, a: -a,
    "mul": lambda xp, node, a, b: a * b,
    "div": lambda xp, node, a, b: a / b,
    "where": lambda xp, node, c, a, b: xp.where(c != 0, a, b),
    **{name: _compare(name) for name in COMPARISONS},
    "fold": _namesake("sum"),
    "tile": lambda xp, node, a, units, width: a,
    "spread": lambda xp, node, a, units, width: a,
    "one_hot": _one_hot,
    "cumsum": _cumsum,
    "place": _place,
    "cut": lambda xp, node, v, first, size: v[..., first : first + size],
    "matmul": _matmul,
    "bmm": lambda xp, node, a, b: (
        (xp.swapaxes(a, -1, -2) if "L" in node.data else a)
        @ (xp.swapaxes(b, -1, -2) if "R" in node.data else b)
    ),
    "swapaxes": lambda xp, node, a: xp.swapaxes(a, -1, -2),
    "roll": lambda xp, node, a: xp.concat(
        (a[..., -node.data[0] :, :], a[..., : -node.data[0], :]), -2
    ),
    "outer": lambda xp, node, a, b: a[..., :, None] * b[..., None, :],
    "transpose": lambda xp, node, a: xp.swapaxes(a, -1, -2),
    "reblock": lambda xp, node, a: a,
    "per_sample": lambda xp, node, a: _joined(a),
}


def _uniform(xp: Any, node: Node, key: tuple[Array, ...], dims: Mapping[str, int]) -> Array:
    """Random numbers of every unit from keys [...]; each gate block has a stream."""
    number, first = int(node.data[0]), int(node.data[1]) if len(node.data) > 1 else 0
    sizes = [dim_size((part,), dims) for part in node.shape[0]] if node.shape else [1]
    high, low = (xp.as_integer(half)[..., None] for half in key)
    draws = [
        drawn(high, low, xp.arange(size), stream(number, first + at))
        for at, size in enumerate(sizes)
    ]
    value = xp.as_float(xp.concat(draws, -1), key[0]) * SCALE
    return value if node.shape else value[..., 0]


def _rank(node: Node) -> int:
    return len(node.shape)


def _spread(xp: Any, node: Node, value: Array, dims: Mapping[str, int]) -> Array:
    """Expand one number per group (or one for all) to the units of a vector."""
    (size,) = shape_size(node.shape, dims)
    before = dim_size(node.data, dims)
    column = value if _rank(node.args[0]) else value[..., None]
    width = size // column.shape[-1]
    if node.op == "tile":
        wide = xp.broadcast_to(column[..., None, :], (*column.shape[:-1], width, column.shape[-1]))
    else:
        wide = xp.broadcast_to(column[..., None], (*column.shape, width))
    wide = wide.reshape(*column.shape[:-1], size)
    return MEANING[node.op](xp, node, wide, xp.positions(before, before + size), width)


def node_function(xp: Any, node: Node, dims: Mapping[str, int]) -> Callable[..., Array]:
    """Compile one node into a function of its arguments' values.

    Args:
        xp: array namespace with the functions of the table above.
        node: what to compute.
        dims: sizes of the named dims.
    """
    if node.op in ("const", "count"):
        number = node.number if node.op == "const" else float(dim_size(node.data, dims))
        value = xp.constant(number)
        return lambda: value
    if node.op == "split":
        return _split(node, dims)
    if node.op == "uniform":
        return lambda *key: _uniform(xp, node, key, dims)
    if node.op == "concat":
        axis = 0 if _rank(node) == 2 else -1
        return lambda *args: xp.concat(xp.broadcast(args, axis), axis)
    kind = OPS[node.op].kind
    if node.op in OF_MATRICES:
        return partial(_of_matrices, xp, node, dims)
    if node.op in OF_PARTS:
        first, (size,) = dim_size(node.data, dims), shape_size(node.shape, dims)
        return partial(MEANING[node.op], xp, node, first=first, size=size)
    if kind == "spread":
        return partial(_spread, xp, node, dims=dims)
    meaning = partial(MEANING[node.op], xp, node)
    if kind == "reduce":
        return lambda *args: meaning(units_of(xp, node, args, dims))
    return _over_units(xp, node, meaning, dims)


def _joined(value: Array) -> Array:
    """The last two axes as one; -1 cannot say so of arrays without elements."""
    return value.reshape(*value.shape[:-2], prod(value.shape[-2:]))


def _of_matrices(xp: Any, node: Node, dims: Mapping[str, int], *args: Array) -> Array:
    """An op whose arguments, units row by row, are read as matrices [..., rows, columns]."""
    sizes = [axes_of(arg.shape[0][0], dims) for arg in node.args]
    matrices = [a.reshape(*a.shape[:-1], *size) for a, size in zip(args, sizes) if size]
    value = MEANING[node.op](xp, node, *matrices)
    return _joined(value)


def _split(node: Node, dims: Mapping[str, int]) -> Callable[..., Array]:
    start, stop = (int(str(d)) for d in node.data)
    dim = node.args[0].shape[0]
    part = slice(dim_size(dim[:start], dims), dim_size(dim[:stop], dims))
    where = part if _rank(node) == 2 else (..., part)
    return itemgetter(where)


def _over_units(
    xp: Any, node: Node, meaning: Callable[..., Array], dims: Mapping[str, int]
) -> Callable[..., Array]:
    """Lift an op over scalar arguments, which are broadcast over units."""
    rank, ranks = _rank(node), [_rank(arg) for arg in node.args]
    # a scalar per sample meets a vector, or a matrix of weights
    lifted = rank and OPS[node.op].kind != "product" and not all(ranks)
    # scalars alone: the value is repeated over the units (the canonical form's broadcast)
    repeated = rank and ranks and not any(ranks)
    if not lifted and not repeated:
        return meaning
    extra, sizes = (..., *[None] * rank), shape_size(node.shape, dims)

    def run(*args: Array) -> Array:
        if lifted:
            args = tuple(
                arg if arg_rank else arg[extra] for arg_rank, arg in zip(ranks, args, strict=True)
            )
        result = meaning(*args)
        return xp.broadcast_to(result, (*result.shape[:-rank], *sizes)) if repeated else result

    return run


def apply(xp: Any, node: Node, args: tuple[Array, ...], dims: Mapping[str, int]) -> Array:
    """The value of one node from its arguments' values; for arguments see :func:`node_function`."""
    return node_function(xp, node, dims)(*args)


def node_functions(
    xp: Any, roots: tuple[Node, ...], available: Collection[Node], dims: Mapping[str, int]
) -> list[tuple[Node, Callable[..., Array]]]:
    """Compile the nodes below ``roots`` that are not ``available``, arguments first; to evaluate
    one graph many times."""
    below = walk(roots, stop=available.__contains__)
    return [(node, node_function(xp, node, dims)) for node in below if node not in available]


def evaluate(
    xp: Any, roots: tuple[Node, ...], values: dict[Node, Array], dims: Mapping[str, int]
) -> tuple[Array, ...]:
    """Evaluate ``roots``; ``values`` holds the leaves and is extended by every node on the way."""
    for node, function in node_functions(xp, roots, values, dims):
        values[node] = function(*[values[arg] for arg in node.args])
    return tuple(values[root] for root in roots)
