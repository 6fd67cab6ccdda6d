"""The same units in another shape, or in another order of axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from elman.steps.arrays.array import Array, Shape, drop_axis, refuse
from elman.steps.arrays.matrices import transposed
from elman.steps.arrays.slicing import materialised, stack, to_flat, to_matrix, unbind
from elman.steps.arrays.units import in_order, units_of


def reshape(array: Array, shape: Shape, batch: int | None) -> Array:
    """The same units, in the order of rows, in another shape."""
    if prod(shape) != prod(array.shape):
        raise refuse("samples and units are regrouped")
    if shape == array.shape and batch == array.batch:
        return array
    _check_samples_first(array, shape, batch)
    if array.uniform:
        return replace(array, base=(1,) * len(shape), shape=shape, batch=batch)
    long = [size for size in shape if size != 1]
    if [size for size in array.shape if size != 1] == long:  # axes of size 1 come and go
        sizes = iter([b for b, n in zip(array.base, array.shape, strict=True) if n != 1])
        base = tuple([1 if size == 1 else next(sizes) for size in shape])
        return replace(array, base=base, shape=shape, batch=batch)
    array = materialised(array)
    if array.slices and long[:1] == [len(array.value)]:
        value: Any = [reshape(part, tuple(long[1:]), None) for part in array.value]
    elif array.of_weights and (array.matrix or array.slices):
        raise refuse("a matrix of weights changes its shape")
    else:
        value = to_flat(array).value
    return replace(array, value=value, base=shape, shape=shape, batch=batch)


def _check_samples_first(array: Array, shape: Shape, batch: int | None) -> None:
    """Check that a view leaves samples apart."""
    if array.batch is None or batch is None:
        if array.batch is not batch:
            raise refuse("samples and units are regrouped")
        return
    before, after = prod(array.shape[: array.batch]), prod(shape[:batch])
    if before != after or (before > 1 and array.shape[array.batch] != shape[batch]):
        raise refuse("samples and units are regrouped")


def permute(array: Array, order: Sequence[int]) -> Array:
    """The axes in another order."""
    order = [axis % len(array.shape) for axis in order]
    base, shape = (tuple([s[axis] for axis in order]) for s in (array.base, array.shape))
    batch = None if array.batch is None else order.index(array.batch)
    moved = replace(array, base=base, shape=shape, batch=batch)
    long = [axis for axis in order if array.base[axis] != 1]
    if long == sorted(long):
        return moved
    if len(long) == 2 and not array.slices:
        return moved.like(transposed(to_matrix(array).value))
    if array.flat:
        return moved.like(in_order(array, units_of(array).permute(*order)))
    first = long[0]
    rest = [axis - (axis > first) for axis in order if axis != first]
    rows = [permute(row, rest) for row in unbind(array, first)]
    return replace(stack(rows, order.index(first)), batch=batch)


def squeeze(array: Array, axes: Sequence[int]) -> Array:
    """Without some axes of size 1."""
    for axis in sorted(axes, reverse=True):
        array = drop_axis(array, axis)
    return array
