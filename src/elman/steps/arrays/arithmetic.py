"""Elementwise functions, reductions and products of arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce as fold
from math import prod
from typing import Any

from elman.frontend import functions, reductions
from elman.frontend.trace import Tracer, lift
from elman.steps.arrays.array import (
    Array,
    Shape,
    add_axis,
    broadcast,
    long_axes,
    padded,
    refuse,
    whole_of,
)
from elman.steps.arrays.matrices import transposed
from elman.steps.arrays.slicing import by_slices, held, operand_of, to_matrix, unbind
from elman.steps.arrays.units import joined
from elman.steps.arrays.views import squeeze


def combine(f: Callable[..., Any], *arrays: Array) -> Array:
    """Apply an elementwise function of tracers, with torch's broadcasting."""
    shape = broadcast(*[array.shape for array in arrays])
    arrays = tuple([padded(array, len(shape)) for array in arrays])
    base = broadcast(*[array.base for array in arrays])
    whole = whole_of(arrays, base, shape)
    if all(array.uniform for array in arrays):
        return whole.like(f(*[array.value for array in arrays]))
    sliced = any(array.slices for array in arrays)
    if len(whole.axes) == 2 and not sliced:
        is_outer = not any(array.base == base for array in arrays)
        if is_outer or any(array.matrix for array in arrays):
            if all(a.of_weights for a in arrays) and not all(a.uniform or a.matrix for a in arrays):
                raise refuse("a matrix of weights is made of vectors")
            return whole.like(f(*[operand_of(array, base) for array in arrays]))
    if sliced or (len(whole.axes) > 2 and any(a.base != base and not a.uniform for a in arrays)):
        rows = by_slices(lambda *row: combine(f, *row), arrays, whole.axes[0])
        return replace(rows, shape=shape, leaves=whole.leaves)
    return whole.like(f(*[a.value if a.uniform else held(a, base).value for a in arrays]))


_FOLDS: dict[str, Callable[..., Any]] = {"sum": operator.add, "amax": functions.maximum}


def reduced(op: str, array: Array, axes: Sequence[int], keep: bool) -> Array:
    """A reduction of ``elman.ops`` (sum, mean, var, amax) over some axes."""
    if array.batch in axes:
        raise refuse("it joins different samples")
    over = [axis for axis in axes if array.base[axis] != 1]
    repeated = prod([array.shape[axis] for axis in axes if array.base[axis] == 1])
    result = _reduced(op, array, over)
    if op == "var" and not over:
        result = combine(lambda v: 0.0 * v, result)
    if op == "sum" and repeated > 1:
        result = combine(lambda v: repeated * v, result)
    result = replace(result, shape=_ones_at(axes, array.shape))
    return result if keep else squeeze(result, axes)


def _ones_at(axes: Sequence[int], shape: Shape) -> Shape:
    return tuple([1 if axis in axes else size for axis, size in enumerate(shape)])


def _reduced(op: str, array: Array, over: list[int]) -> Array:
    """A reduction over held axes, which keep one place each."""
    if not over:
        return array
    first = array.axes[0]
    at_once = array.matrix or over == array.axes[-len(over) :]  # each group of neighbours
    if op in ("mean", "var") and (array.slices or not at_once):
        count = prod([array.base[axis] for axis in over])
        mean = combine(lambda v: v / count, _reduced("sum", array, over))
        if op == "mean":
            return mean
        off = combine(lambda v, m: (v - m) * (v - m), array, mean)
        return combine(lambda v: v / count, _reduced("sum", off, over))
    base, shape = _ones_at(over, array.base), _ones_at(over, array.shape)
    if at_once and not array.slices:
        reduction, value = getattr(reductions, op), Tracer(lift(array.value))
        if not array.matrix:
            value = reduction(value, groups=prod(base))
        else:
            value = reduction(value, axis=None if len(over) == 2 else array.axes.index(over[0]))
        return replace(array, value=value, base=base, shape=shape)
    inner = [axis - (axis > first) for axis in over if axis != first]
    if first in over:
        total = fold(lambda a, b: combine(_FOLDS[op], a, b), unbind(array, first))
        result = add_axis(_reduced(op, total, inner), first)
    else:
        result = by_slices(lambda row: _reduced(op, row, inner), [array], first)
    return replace(result, shape=shape, batch=array.batch)


def matmul(a: Array, b: Array) -> Array:
    """The product of matrices [.., I, J] and [.., J, K], of samples or of weights."""
    rank = len(a.shape)
    if a.batch == rank - 1 or b.batch == rank - 2:
        raise refuse("it joins different samples")
    I, J, K = a.shape[-2], a.shape[-1], b.shape[-1]
    lead = broadcast(a.base[:-2], b.base[:-2])
    shape = (*broadcast(a.shape[:-2], b.shape[:-2]), I, K)
    result = whole_of([a, b], (*lead, I, K), shape)
    if long_axes(lead):
        return by_slices(matmul, [a, b], long_axes(lead)[0])
    if J == 1:
        product = combine(lambda u, v: u * v, a, b)
        return replace(product, shape=shape, batch=result.batch)
    if a.number == 0.0 or b.number == 0.0:
        return result.like(0.0, (1,) * rank)
    a, b = (held(m, (*m.base[:-2], *m.shape[-2:])) for m in (a, b))
    if I == 1 and K == 1:
        return result.like(reductions.sum(a.value * b.value))
    if I == 1:
        return result.like(transposed(to_matrix(b).value) @ a.value)
    if K == 1:
        return result.like(to_matrix(a).value @ b.value)
    if b.of_weights and not (a.matrix or a.of_weights):
        rows = [transposed(to_matrix(b).value) @ row.value for row in unbind(a, rank - 2)]
        return result.like(joined(rows, [K] * I))
    if a.of_weights and b.of_weights:
        raise refuse("weights are multiplied with one another")
    return result.like(to_matrix(a).value @ to_matrix(b).value)
