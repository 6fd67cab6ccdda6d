"""Reductions over all units of a vector or over groups of neighbours; re-exported as ``elman.ops``.

A vector of k gate blocks in G groups: each gate block is G / k groups, by one op whatever G is; or
a group is k / G gate blocks, and the vector is cut into groups. ``groups="D"`` is as many groups as
the dim D has units, ``groups="2D"`` so many of each half of a vector [2H].
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Generator, Iterable
from typing import Any, cast

from elman.frontend.dims import UncutError, check_cut
from elman.frontend.draws import repeat_number
from elman.frontend.functions import concat, exp, split, sqrt, stop_gradient
from elman.frontend.heads import cut_dim, traced_dim
from elman.frontend.lines import describe, refuse, where_called
from elman.frontend.trace import (
    AlongAxis,
    Tracer,
    lift,
    parted,
    per_sample,
    sum_of_axis,
    transpose,
    vector_dim,
)
from elman.ir.graph import Node, node
from elman.ir.types import Dim, Shape, is_matrix, matrix_axes, parse_dim, show_dim

Groups = int | str  # how many groups, or the dims of which there is one for each unit
_ROWS = "rows of a matrix per sample"  # as groups

__all__ = [
    "amax",
    "cumsum",
    "hardmax",
    "layer_norm",
    "mean",
    "rms_norm",
    "softmax",
    "spread",
    "sum",
    "var",
]


def sum(v: Any, *sizes: Any, groups: Groups = 1, axis: int | None = None) -> Any:
    """The sum over all units of a vector: a scalar per sample; or over each of ``groups`` equal
    groups of neighbouring units: [G]. ``groups="D"`` makes as many groups as the dim D has units:
    [D]. The same holds for every function with ``groups``. Of a matrix [K, V], per sample or of
    weights, ``axis=0`` is the sum over its rows, [V], and ``axis=1`` over its columns, [K].
    Python's ``sum`` of a list, a tuple or a generator.

    Example:
        >>> h = h / (1 + sum(h * h))
    """
    if isinstance(v, list | tuple | range | Generator):
        return builtins.sum(cast("Iterable[Any]", v), *sizes)
    return _reduced("sum", v, sizes, groups, axis)


def mean(v: Any, *sizes: Any, groups: Groups = 1, axis: int | None = None) -> Tracer:
    """The mean over all units of a vector: a scalar per sample; or over each of ``groups`` equal
    groups of neighbouring units: [G]; or over an axis of a matrix, as for ``sum``.

    Example:
        >>> h = h - mean(h)
    """
    return _reduced("mean", v, sizes, groups, axis)


def var(v: Any, *sizes: Any, groups: Groups = 1, axis: int | None = None) -> Tracer:
    """The variance over all units of a vector, divided by n (not n - 1): a scalar per sample; or
    over each of ``groups`` equal groups of n neighbouring units: [G]; or over an axis of a
    matrix, as for ``sum``.

    Example:
        >>> h = h / (1 + var(h))
    """
    return _reduced("var", v, sizes, groups, axis)


def amax(v: Any, *sizes: Any, groups: Groups = 1, axis: int | None = None) -> Tracer:
    """The largest unit of a vector: a scalar per sample; or of each of ``groups`` equal groups of
    neighbouring units: [G].

    NaN is the largest. Units that tie share the gradient equally, as with torch.amax. Of a matrix,
    per sample or of weights, ``axis=1`` is the largest of each row, [K], and ``axis=0`` of each
    column, [V].

    Example:
        >>> h = h - amax(h)
    """
    return _reduced("amax", v, sizes, groups, axis)


def spread(values: Any, like: Any) -> Tracer:
    """Repeat one value per group [G], or one for all, for every unit of its group, with the dims of
    ``like`` [H]. H / G neighbours form a group, as for ``sum(v, groups=G)``. G may be a name: [M]
    has one value for each of M equal groups.

    ``v / spread(sqrt(mean(v * v, groups=4)), v)`` is v with each of 4 groups scaled to a root mean
    square of 1.

    Raises:
        TraceError: ``like`` cannot be divided into so many equal groups.

    Example:
        >>> h = h / spread(1 + amax(abs(h), groups=4), h)
    """
    value, dim, where = lift(values), vector_dim(lift(like), "spread"), where_called()
    if not value.shape:
        return Tracer(node("spread", (value,), (), (dim,), where))
    numbers = [n for n in vector_dim(value, "spread") if isinstance(n, int)]
    if len(numbers) < len(value.shape[0]):
        if len(value.shape[0]) != len(dim):
            refuse(
                f"cannot form groups of [{show_dim(dim)}] for values [{show_dim(value.shape[0])}]",
                "spread(m, v) with m [M] and v [H]: a dim of groups for each dim of units",
            )
        return Tracer(node("spread", (value,), (), (dim,), where))
    groups = builtins.sum(numbers)
    counts = _met_counts(dim, groups)
    if counts is not None:
        check_cut((counts,), value.shape)
        return Tracer(node("spread", (value,), (), (dim,), where))
    ones: Shape = ((1,) * groups,)
    check_cut(ones, value.shape)
    wide = [
        Tracer(node("spread", (total.node,), (), ((gate_block,),), where))
        for total, part in zip(split(values, groups), split(like, groups), strict=True)
        for gate_block in part.node.shape[0]
    ]
    return concat(*wide)


def layer_norm(v: Any, *sizes: Any, groups: Groups = 1, eps: float = 1e-5) -> Tracer:
    """(v - mean) / sqrt(var + eps) over all units of v, or over each of ``groups`` equal groups of
    neighbouring units.

    Gains and biases are the cell's own weights: ``g * layer_norm(v) + b``.
    Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450v1, eqs. 3-4; eps inside the root as in torch.

    Example:
        >>> h = tanh(layer_norm(W @ x + R @ h))
    """

    def norm(part: Tracer, wide: Callable[[Tracer], Tracer], over: _Over) -> Tracer:
        return (part - wide(over("mean", part))) * wide(1.0 / sqrt(over("var", part) + eps))

    return _by_groups("layer_norm", v, sizes, groups, norm)


def rms_norm(v: Any, *sizes: Any, groups: Groups = 1, eps: float = 1e-5) -> Tracer:
    """v / sqrt(mean(v²) + eps) over all units of v, or over each of ``groups`` equal groups of
    neighbouring units.

    Gains are the cell's own weights: ``g * rms_norm(v)``.
    Source: Zhang & Sennrich 2019, arXiv:1910.07467v1, eq. 4; eps inside the root as in torch.

    Example:
        >>> h = tanh(rms_norm(W @ x + R @ h))
    """

    def norm(part: Tracer, wide: Callable[[Tracer], Tracer], over: _Over) -> Tracer:
        return part * wide(1.0 / sqrt(over("mean", part * part) + eps))

    return _by_groups("rms_norm", v, sizes, groups, norm)


def softmax(v: Any, *sizes: Any, groups: Groups = 1, axis: int | None = None) -> Tracer:
    """exp(v) divided by its sum over all units, or over each of ``groups`` equal groups of
    neighbouring units, or over each row of a matrix, per sample or of weights (``axis=1``), or
    each column (``axis=0``); shifted by the largest unit first.

    Example:
        >>> h = softmax(W @ x + R @ h)
    """

    def soft(part: Tracer, wide: Callable[[Tracer], Tracer], over: _Over) -> Tracer:
        shifted = exp(part - wide(stop_gradient(over("amax", part))))
        return shifted / wide(over("sum", shifted))

    if axis is not None:
        v = Tracer(per_sample(lift(v)))
    over = _groups_of_axis("softmax", v, groups, axis)
    if axis in (0, -2):
        largest = stop_gradient(amax(v, axis=0))
        powers = exp(v - AlongAxis(largest.node, 1))
        return powers / AlongAxis(sum(powers, axis=0).node, 1)
    return _by_groups("softmax", v, sizes, over, soft)


def hardmax(v: Any, *sizes: Any, groups: Groups = 1) -> Tracer:
    """1 at the largest unit of v, or of each of ``groups`` equal groups of neighbouring units, else
    0: one_hot(argmax(v)).

    The first of units that tie, as torch.argmax; NaN is the largest. The gradient is zero.

    Example:
        >>> h = hardmax(W @ x + R @ h)
    """

    def hard(part: Tracer, wide: Callable[[Tracer], Tracer], over: _Over) -> Tracer:
        first = over("argmax", part).node
        return Tracer(node("one_hot", (first,), (), part.node.shape, where_called()))

    return _by_groups("hardmax", v, sizes, groups, hard)


def cumsum(v: Any) -> Tracer:
    """The sum of all units up to each one, itself included: [H] as v.

    Example:
        >>> gate = cumsum(softmax(W @ x))
    """
    value = lift(v)
    vector_dim(value, "cumsum")
    return Tracer(node("cumsum", (value,), (), value.shape, where_called()))


_Over = Callable[[str, Tracer], Tracer]  # a reduction of a part


def _check_one(name: str, sizes: tuple[Any, ...]) -> None:
    """Raise TraceError for positional arguments beside the vector (in torch, a dim or a size)."""
    if sizes:
        refuse(
            f"{name} takes one vector, and by position nothing else, not {sizes[0]!r}",
            f"{name}(v) is over all its units, {name}(v, groups=4) over each of 4 groups of them",
        )


def _named_counts(dim: Dim, groups: str) -> Dim:
    """The dims that name the number of groups in each gate block. Raises TraceError: they are no
    names, or not one for each gate block."""
    try:
        counts = traced_dim(parse_dim(groups))
    except ValueError:
        counts = ()
    if not all(isinstance(count, str) for count in counts or (0,)):
        refuse(
            f"groups must be a positive integer or the name of a dim, not {groups!r}",
            'layer_norm(v, groups=4), or layer_norm(v, groups="D")',
        )
    if len(counts) != len(dim):
        example = f"{len(dim)}D" if len(dim) > 1 else "D"
        refuse(
            f"cannot form groups of [{show_dim(dim)}] for values [{show_dim(counts)}]",
            f'groups="{example}": a dim of groups for each dim of units',
        )
    return counts


def _counts(dim: Dim, groups: Any) -> Dim | None:
    """Number of groups in each gate block; None if a group spans several gate blocks.
    Raises TraceError: the groups would not be equal."""
    if isinstance(groups, str):
        return _named_counts(dim, groups)
    if type(groups) is not int or groups < 1:
        refuse(
            f"groups must be a positive integer or the name of a dim, not {groups!r}",
            'layer_norm(v, groups=4), or layer_norm(v, groups="D")',
        )
    if groups == 1:
        return None
    count, rest = divmod(groups, len(dim))
    if rest or len(set(dim)) > 1:
        numbers = all(isinstance(gate_block, int) for gate_block in dim)
        if (len(set(dim)) > 1 or len(dim) % groups) and not numbers:
            refuse(
                f"cannot form {groups} equal groups of [{show_dim(dim)}]",
                "a group is a part of H, or several H: groups=3 or 6 of [3H]",
            )
        return None
    gate_block = dim[0]
    if isinstance(gate_block, int) and gate_block % count:
        refuse(
            f"cannot form {groups} equal groups of [{show_dim(dim)}]",
            f"{gate_block} is not a multiple of {count}",
        )
    return (count,) * len(dim)


def _met_counts(dim: Dim, groups: Any) -> Dim | None:
    """As :func:`_counts`, split like other dims of that many values. Raises TraceError and
    UncutError: the vector has to be split accordingly, which is possible only for numbers."""
    counts = _counts(dim, groups)
    if counts is None or isinstance(groups, str):
        return counts
    gate_block, count = dim[0], groups // len(dim)
    traced = cut_dim(counts[:1])
    if len(traced) > 1:
        if not isinstance(gate_block, int):
            refuse(
                f"a dim of {count} is cut into parts elsewhere in this cell,"
                f" but not {count} groups of [{gate_block}]",
                "cut the vector into parts first: split(v, 2)",
            )
        width = gate_block // count
        parts = (part for part in traced if isinstance(part, int))
        raise UncutError({gate_block: tuple(width * part for part in parts)})
    return counts


def _over(op: str, value: Node, shape: Shape) -> Tracer:
    return Tracer(node(op, (value,), (), shape, where_called()))


def _groups_of_axis(name: str, v: Any, groups: Groups, axis: int | None) -> Groups:
    """The groups that a reduction over the columns of a matrix per sample has: one for each row.
    Raises TraceError: there is no such axis, or the function has groups besides."""
    value = lift(v)
    if axis is None and (groups == 1 or not is_matrix(value)):
        return groups
    block = value.shape[0][0] if is_matrix(value) else None
    if not isinstance(block, tuple):
        refuse(f"{name}: {describe(value)} has no axes", f"{name}(v), or {name}(v, groups=4)")
    if groups != 1:
        refuse(f"{name}: a matrix of each sample has no groups", f"{name}(S, axis=1)")
    if axis not in (0, 1, -1, -2):
        refuse(f"{name}: a matrix [K, V] has axes 0 and 1, not {axis!r}", f"{name}(S, axis=1)")
    return _ROWS


def _over_axis(op: str, v: Any, groups: Groups, axis: int) -> Tracer:
    """A reduction over an axis of a matrix, per sample or of weights: [V] or [K]."""
    value = per_sample(lift(v))
    if axis in (0, -2) and op in ("sum", "mean", "var") and is_matrix(value) and groups == 1:
        if op == "var":
            difference = Tracer(value) - AlongAxis(mean(v, axis=0).node, 1)
            return mean(difference * difference, axis=0)
        total = sum_of_axis(value, 0)
        if op == "sum":
            return total
        count = Tracer(node("count", (), (matrix_axes(value)[0],), where=where_called()))
        return total / count
    _groups_of_axis(op, Tracer(value), groups, axis)
    if axis in (0, -2):
        value = lift(transpose(Tracer(value)))
    return Tracer(parted(_over(op, value, ((matrix_axes(value)[0],),)).node))


def _over_weights(op: str, matrix: Node, axis: int | None) -> Tracer:
    """The sum, or the mean, of a weight matrix over its rows or columns: its product with ones; or
    over both."""
    if axis is None:
        return _reduced(op, _over_weights(op, matrix, 1), (), 1)
    if axis not in (0, 1, -1, -2):
        refuse(f"{op}: a matrix of weights has axes 0 and 1, not {axis!r}", f"{op}(W, axis=1)")
    weights = transpose(Tracer(matrix)) if axis in (0, -2) else Tracer(matrix)
    summed = weights.node.shape[1]
    total = weights @ repeat_number(1.0, (summed,))
    if op == "sum":
        return total
    return total / Tracer(node("count", (), summed, where=where_called()))


def _reduced(
    op: str, v: Any, sizes: tuple[Any, ...], groups: Groups, axis: int | None = None
) -> Tracer:
    """A scalar, or a value for each group, or for each row or column of a matrix."""
    _check_one(op, sizes)
    value = lift(v)
    if len(value.shape) == 2 and op in ("sum", "mean") and groups == 1:
        return _over_weights(op, value, axis)
    if axis is not None:
        return _over_axis(op, v, groups, axis)
    if is_matrix(value):
        _groups_of_axis(op, v, groups, axis)
        return _over(op, value, ())
    dim = vector_dim(value, op)
    counts = _met_counts(dim, groups)
    if counts is not None:
        return _over(op, value, (counts,))
    if groups == 1:
        return _over(op, value, ())
    assert isinstance(groups, int), "names of dims have counts"
    where, one_unit = where_called(), ((1,),)
    results = [_over(op, part.node, ()).node for part in split(v, groups)]
    return concat(*(Tracer(node("spread", (value,), (), one_unit, where)) for value in results))


def _by_groups(
    name: str,
    v: Any,
    sizes: tuple[Any, ...],
    groups: Groups,
    formula: Callable[[Tracer, Callable[[Tracer], Tracer], _Over], Tracer],
) -> Tracer:
    """Apply a formula to each group, or to all groups at once.

    ``formula`` is called with a vector, a function that expands a value per group to its units, and
    a reduction."""
    _check_one(name, sizes)
    value = lift(v)
    if groups is _ROWS:
        counts: Dim | None = (matrix_axes(value)[0],)
    else:
        dim = vector_dim(value, name)
        counts = _counts(dim, groups)
    if isinstance(groups, int) and (counts is None or len(counts) == groups):
        # each group is one gate block or several
        vectors = [Tracer(value)] if groups == 1 else split(v, groups)
        results = [
            formula(part, lambda vector: vector, lambda op, vector: _over(op, vector.node, ()))
            for part in vectors
        ]
        return results[0] if groups == 1 else concat(*results)
    assert counts is not None, "groups are parts of gate blocks"
    shape = (counts,)
    return formula(
        Tracer(value),
        lambda vector: Tracer(node("spread", (vector.node,), (), value.shape, where_called())),
        lambda op, vector: _over(op, vector.node, shape),
    )
