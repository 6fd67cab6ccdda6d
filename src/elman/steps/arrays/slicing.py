"""Places of an axis: arrays are cut, joined, repeated, and brought into another form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch

from elman.frontend import functions, matrices, reductions
from elman.frontend.draws import repeat_number
from elman.frontend.heads import cut_dim
from elman.frontend.trace import AlongAxis, Tracer, lift, matrix_shape, per_sample
from elman.ir.graph import Rate
from elman.steps.arrays.array import (
    MOST_SLICES,
    Array,
    MatrixError,
    Shape,
    add_axis,
    broadcast,
    drop_axis,
    limited,
    long_axes,
    put,
    refuse,
    whole_of,
)
from elman.steps.arrays.matrices import matrix_of_row, rows_taken
from elman.steps.arrays.units import as_vector, in_order, regrouped, units_of


def to_matrix(array: Array) -> Array:
    """A flat array of two axes as a matrix. Raises MatrixError: it is made of leaves that can be
    matrices from the beginning."""
    if array.matrix:
        return array
    if array.leaves:
        raise MatrixError(array.leaves)
    if array.of_weights:
        raise refuse("a matrix is made of a vector of weights")
    first, _ = array.axes
    rows = [matrix_of_row(Tracer(lift(row.value))) for row in unbind(array, first)]
    return array.like(functions.concat(*rows))


def to_flat(array: Array) -> Array:
    """Any array as a vector of all its units, in the order of rows."""
    if not (array.slices or array.matrix):
        return array
    if array.matrix and lift(array.value).rate == Rate.WEIGHT:
        raise refuse("a matrix of weights becomes a vector")
    first = array.axes[0]
    flat = stack([to_flat(row) for row in unbind(array, first)], first)
    return array.like(flat.value, flat.base)


def operand_of(array: Array, base: Shape) -> Any:
    """An operand of an elementwise operation of matrices."""
    if array.uniform or array.matrix:
        return array.value
    if array.base == base:
        return to_matrix(array).value
    along = long_axes(base).index(*array.axes)
    rows, columns = [cut_dim((base[axis],)) for axis in long_axes(base)]
    return AlongAxis(array.value.node, along).to_matrix(matrix_shape(rows, columns))


def whole_matrix(array: Array, base: Shape) -> Any:
    """A value repeated to a whole matrix."""
    ones = [repeat_number(1.0, (cut_dim((base[axis],)),)) for axis in long_axes(base)]
    return matrices.outer(*ones) * operand_of(array, base)


def _with_neighbours(array: Array, base: Shape) -> Array:
    """A flat array whose units are repeated along the axes after the last one that is held."""
    last = array.axes[-1]
    near = (*array.base[: last + 1], *base[last + 1 :])
    if near == array.base:
        return array
    like = repeat_number(0.0, (cut_dim((prod(near),)),))
    return array.like(reductions.spread(array.value, like), near)


def held(array: Array, base: Shape) -> Array:
    """With all units of a base, those that are repeated, too."""
    repeated = [axis for axis, size in enumerate(base) if size != array.base[axis]]
    if not repeated:
        return array
    if array.uniform:
        return array.like(as_vector(array.value, prod(base)), base)
    if array.slices or array.matrix:
        axis = repeated[0]
        one = replace(array, shape=put(array.shape, axis, 1), batch=None)
        copies = concat([one] * limited(base[axis]), axis)
        return held(replace(copies, shape=array.shape, batch=array.batch), base)
    array = _with_neighbours(array, base)
    return array.like(in_order(array, units_of(array).expand(base)), base)


def materialised(array: Array) -> Array:
    """An array that repeats nothing: its base is its shape."""
    return held(array, array.shape)


def take(array: Array, axis: int, places: Sequence[int]) -> Array:
    """The given places of an axis, in their order."""
    return _taken(array, axis, [places])[0]


def cut(array: Array, axis: int, sizes: Sequence[int]) -> list[Array]:
    """An array in parts along an axis."""
    ends = accumulate(sizes, initial=0)
    return _taken(array, axis, [range(start, stop) for start, stop in pairwise(ends)])


def _taken(array: Array, axis: int, groups: Sequence[Sequence[int]]) -> list[Array]:
    """An array for each group of places of an axis."""
    if array.base[axis] == 1:
        return [replace(array, shape=put(array.shape, axis, len(group))) for group in groups]
    if all([*group] == [*range(array.base[axis])] for group in groups):
        return [array] * len(groups)
    first, count = array.axes[0], array.base[axis]
    if array.slices and axis == first:
        rows = unbind(array, axis)
        stacks = [stack([rows[at] for at in group], axis) for group in groups]
        return [replace(made, batch=array.batch) for made in stacks]
    values: Sequence[Any]
    if array.slices:
        rows = [_taken(row, axis - 1, groups) for row in unbind(array, first)]
        values = [*zip(*rows, strict=True)]
    elif array.matrix:
        values = rows_taken(array.value, groups, count, axis == first)
    else:
        if axis != first and array.base[first] > MOST_SLICES and array.leaves:
            raise MatrixError(array.leaves)
        orders = [units_of(array).index_select(axis, torch.tensor([*group])) for group in groups]
        values = regrouped([array.value], [prod(array.base)], orders)
    results: list[Array] = []
    for group, value in zip(groups, values, strict=True):
        base, shape = (put(s, axis, len(group)) for s in (array.base, array.shape))
        made = replace(array, value=value, base=base, shape=shape)
        results.append(of_slices(made, value) if array.slices else made)
    return results


def pick(array: Array, axis: int, at: int) -> Array:
    """The array at one place of an axis, without it."""
    if array.base[axis] == 1:
        return drop_axis(array, axis)
    first = array.axes[0]
    if array.slices and axis == first:
        part = array.value[at]
        sizes = iter((array.base[axis], *part.base))
        base = tuple([1 if size == 1 else next(sizes) for size in array.base])
        return drop_axis(array.like(part.value, base), axis)
    if array.matrix:
        if array.of_weights:
            raise refuse("a row is taken from a matrix of weights")
        (row,) = rows_taken(array.value, [[at]], array.base[axis], axis == first)
        return drop_axis(array.like(row, put(array.base, axis, 1)), axis)
    return drop_axis(cut(array, axis, [1] * array.base[axis])[at], axis)


def unbind(array: Array, axis: int) -> list[Array]:
    """The array at each place of an axis."""
    count = array.shape[axis]
    if array.base[axis] == 1:
        return [drop_axis(array, axis)] * count
    if array.matrix or (array.slices and axis == array.axes[0]):
        return [pick(array, axis, at) for at in range(limited(count))]
    return [drop_axis(part, axis) for part in cut(array, axis, [1] * limited(count))]


def stack(arrays: Sequence[Array], axis: int) -> Array:
    """Arrays of one shape along a new axis."""
    return concat([add_axis(array, axis) for array in arrays], axis)


def by_slices(f: Callable[..., Array], arrays: Sequence[Array], axis: int) -> Array:
    """Apply a function to the slices of arrays of one rank along an axis."""
    count = limited(max(array.base[axis] for array in arrays))
    rows = [unbind(a, axis) if a.base[axis] != 1 else [drop_axis(a, axis)] * count for a in arrays]
    result = stack([f(*row) for row in zip(*rows, strict=True)], axis)
    return replace(result, batch=next((a.batch for a in arrays if a.batch is not None), None))


def of_slices(whole: Array, rows: Sequence[Array]) -> Array:
    """An array of slices along its first held axis."""
    rest = whole.axes[1:]
    sizes = tuple([whole.base[axis] for axis in rest])
    return whole.like(
        [
            Array(row.value, tuple([row.base[axis - 1] for axis in rest]), sizes, None, row.leaves)
            for row in rows
        ]
    )


def concat(arrays: Sequence[Array], axis: int) -> Array:
    """Arrays one after another along an axis."""
    if len(arrays) == 1:
        return arrays[0]
    sizes = [array.shape[axis] for array in arrays]
    common = broadcast(*[put(array.base, axis, 1) for array in arrays])
    base, shape = (put(s, axis, sum(sizes)) for s in (common, arrays[0].shape))
    whole = whole_of(arrays, base, shape)
    if whole.batch == axis:
        raise refuse("it joins different samples")
    bases = [put(common, axis, size) for size in sizes]
    if not any(array.slices or array.matrix for array in arrays):
        return whole.like(_joined_along(arrays, bases, axis))
    first, *_ = whole.axes
    sliced = any(array.slices for array in arrays) or len(whole.axes) > 2
    if not sliced:
        return whole.like(_joined_matrices(arrays, bases, axis, axis == first))
    if axis == first:
        return of_slices(whole, [row for array in arrays for row in unbind(array, axis)])
    return by_slices(lambda *row: concat(row, axis - 1), arrays, first)


def _joined_along(arrays: Sequence[Array], bases: Sequence[Shape], axis: int) -> Any:
    """The vector of flat and uniform arrays, each repeated to its base."""
    arrays = [
        array if array.uniform else _with_neighbours(array, base)
        for array, base in zip(arrays, bases, strict=True)
    ]
    sizes = [prod(array.base) for array in arrays]
    starts = accumulate(sizes, initial=0)
    order = [(units_of(a) + start).expand(b) for a, b, start in zip(arrays, bases, starts)]
    (value,) = regrouped([array.value for array in arrays], sizes, [torch.cat(order, axis)])
    return value


def _joined_matrices(
    arrays: Sequence[Array], bases: Sequence[Shape], axis: int, of_rows: bool
) -> Any:
    if all(array.of_weights for array in arrays) and not all(array.matrix for array in arrays):
        raise refuse("a matrix of weights is made of vectors")
    pairs = [*zip(arrays, bases, strict=True)]
    values: list[Any] = []
    for array, base in pairs:
        if len(long_axes(base)) < 2:
            row = held(drop_axis(array, axis), put(base, axis)).value
            values.append(matrix_of_row(Tracer(lift(row))))
            continue
        value = whole_matrix(array, base) if array.uniform else operand_of(array, base)
        values.append(value if of_rows else Tracer(per_sample(lift(value))).T)
    joined = functions.concat(*values)
    return joined if of_rows else joined.T
