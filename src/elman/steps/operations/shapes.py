"""Operations that move, choose and join places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from elman.frontend import functions as f
from elman.frontend.trace import pointwise
from elman.steps.arrays import arithmetic, matrices, slicing, views
from elman.steps.arrays.arithmetic import combine
from elman.steps.arrays.array import Array, add_axis, expand, long_axes, padded, put, refuse
from elman.steps.operations.table import Facts, axis_of, row, row_of_facts

row("alias", "clone", "lift_fresh", "lift_fresh_copy")(lambda a, **_: a)
row("permute")(views.permute)
row("t")(lambda a: views.permute(a, [*reversed(range(len(a.shape)))]))
row("unbind", "unbind_copy")(lambda a, dim=0: slicing.unbind(a, axis_of(a, dim)))
row("stack")(lambda rows, dim=0: slicing.stack(rows, dim % (len(rows[0].shape) + 1)))
row("index_select")(lambda a, dim, index: _index(a, [*[None] * axis_of(a, dim), index]))


@row_of_facts("view", "_unsafe_view", "squeeze", "unsqueeze", "view_copy", "_reshape_alias")
def _view(facts: Facts, a: Array, *_: Any, **__: Any) -> Array:
    return views.reshape(a, facts.shape, facts.batch)


@row_of_facts("expand", "expand_copy")
def _expand(facts: Facts, a: Array, *_: Any, **__: Any) -> Array:
    return expand(a, facts.shape, facts.batch)


@row("transpose")
def _transpose(a: Array, first: int, second: int) -> Array:
    order = [*range(len(a.shape))]
    order[first], order[second] = order[second], order[first]
    return views.permute(a, order)


@row("split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes", "split_copy")
def _split(a: Array, sizes: Any, dim: int = 0) -> list[Array]:
    axis = axis_of(a, dim)
    if isinstance(sizes, int):
        whole, rest = divmod(a.shape[axis], sizes)
        sizes = [sizes] * whole + [rest] * bool(rest)
    return slicing.cut(a, axis, sizes)


@row_of_facts("slice", "slice_copy")
def _slice(
    facts: Facts, a: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    axis = dim % len(a.shape)
    if axis == a.batch:
        if facts.shape == a.shape:
            return a
        raise refuse("it chooses samples")
    return slicing.take(a, axis, range(a.shape[axis])[slice(start, end, step)])


@row("select", "select_copy")
def _select(a: Array, dim: int, index: Any) -> Array:
    axis = axis_of(a, dim)
    if not isinstance(index, int):
        raise refuse("a place that is no constant")
    return slicing.pick(a, axis, index % a.shape[axis])


@row("cat")
def _cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    rank = max(len(a.shape) for a in tensors)
    tensors = [a for a in tensors if len(a.shape) == rank]  # torch leaves out empty ones [0]
    return slicing.concat(tensors, dim % rank)


@row_of_facts("repeat")
def _repeat(facts: Facts, a: Array, times: Sequence[int]) -> Array:
    result = padded(a, len(times))
    for axis, count in enumerate(times):
        if count == 1 or axis == facts.batch:
            continue
        if result.shape[axis] == 1:
            result = replace(result, shape=put(result.shape, axis, count))
        else:
            result = slicing.concat([result] * count, axis)
    return replace(result, batch=facts.batch)


@row("roll")
def _roll(a: Array, shifts: Any, dims: Any = ()) -> Array:
    if not dims:  # all axes as one, that of samples too
        dims = long_axes(a.shape)
        if len(dims) > 1 or a.batch is not None:
            raise refuse("it rolls all axes at once")
    for shift, dim in zip(shifts, dims):
        axis = axis_of(a, dim)
        size = a.shape[axis]
        if a.matrix and not a.of_weights and a.base[axis] != 1 and shift % size:
            a = matrices.rolled(a, axis, shift % size)
        else:
            a = slicing.take(a, axis, [(k - shift) % size for k in range(size)])
    return a


@row("flip")
def _flip(a: Array, dims: Sequence[int]) -> Array:
    for dim in dims:
        axis = axis_of(a, dim)
        a = slicing.take(a, axis, range(a.shape[axis])[::-1])
    return a


@row("slice_scatter")
def _slice_scatter(
    a: Array, source: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    axis = dim % len(a.shape)
    if axis == a.batch:
        if source.shape == a.shape:
            return replace(source, batch=a.batch)
        raise refuse("it chooses samples")
    return _scattered(a, source, axis, range(a.shape[axis])[slice(start, end, step)])


@row("select_scatter")
def _select_scatter(a: Array, source: Array, dim: int, index: int) -> Array:
    axis = axis_of(a, dim)
    return _scattered(a, add_axis(source, axis), axis, [index % a.shape[axis]])


def _scattered(a: Array, source: Array, axis: int, places: Sequence[int]) -> Array:
    """An array in which some places of an axis are another one's."""
    count = a.shape[axis]
    if len(places) == 1 and a.matrix and not a.of_weights and a.base[axis] != 1:
        base = put((1,) * len(a.shape), axis, count)
        here = Array(matrices.one_hot(places[0], count), base, base, a.batch)
        return combine(f.where, here, source, a)
    order = [*range(count)]
    for at, place in enumerate(places):
        order[place] = count + at
    return slicing.take(slicing.concat([a, source], axis), axis, order)


@row("index")
def _index(a: Array, indices: Sequence[Any]) -> Array:
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        raise refuse("it has several indices")
    axis, index = given[0]
    axis = axis_of(a, axis)
    if not isinstance(index, torch.Tensor) or index.dim() != 1:
        raise refuse("its index is no constant vector")
    if index.dtype == torch.bool:
        index = index.nonzero().flatten()
    return slicing.take(a, axis, [place % a.shape[axis] for place in index.tolist()])


@row("gather")
def gather(a: Array, dim: int, index: Any, **_: Any) -> Array:
    """The one place of an axis that each sample chooses."""
    axis = axis_of(a, dim)
    if not isinstance(index, Array):
        raise refuse("its index is no value of a sample")
    if index.shape[axis] != 1:
        raise refuse("it gathers several places by values of a sample")
    count = a.shape[axis]
    places = [combine(lambda i, k=k: pointwise("eq", i, float(k)), index) for k in range(count)]
    chosen = slicing.concat(places, axis)
    return arithmetic.reduced(
        "sum", combine(lambda v, c: f.where(c, v, 0.0), a, chosen), [axis], True
    )
