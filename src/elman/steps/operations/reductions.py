"""Sums and other reductions, softmax, and norms of vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from functools import reduce as fold
from itertools import accumulate
from math import prod
from typing import Any

from elman.frontend import functions as f
from elman.frontend import reductions
from elman.frontend.lines import where_called
from elman.frontend.trace import Tracer, pointwise
from elman.ir.graph import node
from elman.steps.arrays import arithmetic, slicing, views
from elman.steps.arrays.arithmetic import combine
from elman.steps.arrays.array import Array, add_axis, long_axes, put, refuse
from elman.steps.operations.pointwise import not_zero
from elman.steps.operations.shapes import gather
from elman.steps.operations.table import axis_of, op_named, row


def _axes(a: Array, dim: Any) -> list[int]:
    rank = len(a.shape)
    if dim is None or dim == []:
        return [*range(rank)]
    return [axis % rank for axis in ([dim] if isinstance(dim, int) else dim)]


def reduce_over(op: str, a: Array, dim: Any = None, keepdim: bool = False, **_: Any) -> Array:
    """A reduction over some axes; over all, if none is named."""
    return arithmetic.reduced(op, a, _axes(a, dim), keepdim)


for _name in ("sum", "mean", "amax"):
    row(_name)(partial(reduce_over, _name))
row("max.default")(partial(reduce_over, "amax"))


@row("amin")
def _amin(a: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return combine(op_named("neg"), reduce_over("amax", combine(op_named("neg"), a), dim, keepdim))


@row("max.dim")
def _max(a: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    places = _argmax(a, dim, True)
    value = gather(a, dim, places)
    over = [] if keepdim else [axis_of(a, dim)]
    return views.squeeze(value, over), views.squeeze(places, over)


@row("min.dim")
def _min(a: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    value, places = _max(combine(op_named("neg"), a), dim, keepdim)
    return combine(op_named("neg"), value), places


@row("argmax")
def _argmax(a: Array, dim: Any = None, keepdim: bool = False) -> Array:
    if dim is None:
        if len(long_axes(a.shape)) > 1 or a.batch is not None:
            raise refuse("it joins different samples")
        dim = -1
    axis = axis_of(a, dim)
    a = slicing.materialised(a)
    if a.base[axis] == 1:
        places = combine(lambda v: 0.0 * v, a)
    elif a.flat and a.axes == [axis]:
        largest = Tracer(node("argmax", (a.value.node,), (), (), where_called()))
        shape = put(a.shape, axis, 1)
        places = replace(a, value=largest, base=shape, shape=shape)
    else:
        first = next(k for k in a.axes if k != axis)
        inside = axis - (axis > first)
        places = slicing.by_slices(lambda row: _argmax(row, inside, True), [a], first)
    return places if keepdim else views.squeeze(places, [axis])


@row("var")
def _var(a: Array, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Array:
    count = prod([a.shape[axis] for axis in _axes(a, dim)])
    value = reduce_over("var", a, dim, keepdim)
    correction = 1 if correction is None else correction
    if correction == 0:
        return value
    scale = count / (count - correction) if count > correction else math.nan
    return combine(lambda v: scale * v, value)


row("var_mean")(
    lambda a, dim=None, correction=1, keepdim=False: (
        _var(a, dim, correction, keepdim),
        reduce_over("mean", a, dim, keepdim),
    )
)
row("std")(lambda *args, **kwargs: combine(f.sqrt, _var(*args, **kwargs)))


@row("prod")
def _prod(a: Array, dim: int = 0, keepdim: bool = False, **_: Any) -> Array:
    axis = axis_of(a, dim)
    total = fold(partial(combine, op_named("mul")), slicing.unbind(a, axis))
    return add_axis(total, axis) if keepdim else total


@row("any")
def _any(a: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return reduce_over("amax", combine(not_zero, a), dim, keepdim)


@row("all")
def _all(a: Array, dim: Any = None, keepdim: bool = False) -> Array:
    zeros = combine(lambda v: pointwise("eq", v, 0.0), a)
    return combine(lambda v: 1.0 - v, reduce_over("amax", zeros, dim, keepdim))


_NORMS: dict[float, tuple[Callable[..., Any], str]] = {
    1.0: (f.abs, "sum"),
    2.0: (lambda v: v * v, "sum"),
    math.inf: (f.abs, "amax"),
}


@row("linalg_vector_norm")
def _norm(a: Array, order: float = 2.0, dim: Any = None, keepdim: bool = False, **_: Any) -> Array:
    if order not in _NORMS:
        raise refuse(f"a norm of order {order}")
    function, op = _NORMS[order]
    total = reduce_over(op, combine(function, a), dim, keepdim)
    return combine(_root, total) if order == 2.0 else total


def _root(v: Any) -> Any:
    """The square root, of 0 with the gradient 0, as that of a norm is."""
    positive = v > 0
    return f.where(positive, f.sqrt(f.where(positive, v, 1.0)), v)


def _below_largest(a: Array, dim: Any) -> tuple[Array, Array]:
    """What an array is below its largest value along some axes, and that value: the exponential of
    it overflows nowhere."""
    largest = combine(f.stop_gradient, reduce_over("amax", a, dim, True))
    return combine(op_named("sub"), a, largest), largest


@row("logsumexp")
def _logsumexp(a: Array, dim: Any, keepdim: bool = False) -> Array:
    off, largest = _below_largest(a, dim)
    total = reduce_over("sum", combine(f.exp, off), dim, True)
    result = combine(lambda s, m: f.log(s) + m, total, largest)
    return result if keepdim else views.squeeze(result, _axes(a, dim))


@row("_softmax", "_safe_softmax")
def _softmax(a: Array, dim: int, *_: Any, **__: Any) -> Array:
    powers = combine(f.exp, _below_largest(a, dim)[0])
    return combine(op_named("div"), powers, reduce_over("sum", powers, dim, True))


@row("_log_softmax")
def _log_softmax(a: Array, dim: int, *_: Any) -> Array:
    off, _largest = _below_largest(a, dim)
    total = reduce_over("sum", combine(f.exp, off), dim, True)
    return combine(lambda v, s: v - f.log(s), off, total)


@row("cumsum")
def _cumsum(a: Array, dim: int, **_: Any) -> Array:
    axis = axis_of(a, dim)
    a = slicing.materialised(a)
    if a.flat and a.axes == [axis]:
        return a.like(reductions.cumsum(a.value))
    return slicing.stack(
        [*accumulate(slicing.unbind(a, axis), partial(combine, op_named("add")))], axis
    )
