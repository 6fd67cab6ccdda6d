"""Units of vectors: cut out in runs of neighbours, put into another order, and joined."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor

from elman.frontend import functions, reductions
from elman.frontend.dims import check_cut
from elman.frontend.draws import repeat_number
from elman.frontend.heads import cut_dim
from elman.frontend.lines import where_called
from elman.frontend.trace import Tracer, is_number, lift
from elman.ir.graph import node
from elman.ir.types import Dim
from elman.steps.arrays.array import Array, refuse

_MOST_PIECES = 4096  # of a vector


def as_vector(value: Any, count: int) -> Tracer:
    """A number, a scalar or a vector as a vector of units."""
    if is_number(value):
        return repeat_number(value, (cut_dim((count,)),))
    tracer = Tracer(lift(value))
    if tracer.node.shape:
        return tracer
    return Tracer(node("spread", (tracer.node,), (), (cut_dim((count,)),), where_called()))


def units_of(array: Array) -> Tensor:
    """The number of the unit at each place of its base: torch moves numbers as it moves values."""
    return torch.arange(prod(array.base)).view(array.base)


def runs_of(order: Sequence[int], starts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Runs of neighbours within one vector, and of one unit that is repeated: the first unit, the
    one after the last, and how many times."""
    runs: list[tuple[int, int, int]] = []
    for unit in order:
        start, stop, times = runs[-1] if runs else (-1, -1, 0)
        if unit == stop and times == 1 and unit not in starts:
            runs[-1] = start, stop + 1, 1
        elif unit == start == stop - 1:
            runs[-1] = start, stop, times + 1
        else:
            runs.append((unit, unit + 1, 1))
    return runs


def regrouped(vectors: Sequence[Any], sizes: Sequence[int], orders: Sequence[Tensor]) -> list[Any]:
    """Units of vectors in other orders: runs of neighbours are cut out and joined.

    Args:
        vectors: of so many units; what has one unit is a number or a scalar.
        orders: numbers of units, counted through all vectors.

    Returns:
        For each order a vector; of one unit a scalar.
    """
    starts = [0, *accumulate(sizes)]
    of_orders = [runs_of(order.flatten().tolist(), starts) for order in orders]
    if max(map(len, of_orders)) > _MOST_PIECES:
        raise refuse(f"a vector is cut into more than {_MOST_PIECES} pieces")
    ends = {*starts, *[end for runs in of_orders for run in runs for end in run[:2]]}
    dims = {start: cut_dim((stop - start,)) for start, stop in pairwise(sorted(ends))}

    def dim_of(start: int, stop: int) -> Dim:
        return functions.sum_of([dim for at, dim in dims.items() if start <= at < stop])

    for vector, (start, stop) in zip(vectors, pairwise(starts), strict=True):
        if any(start < end < stop for end in ends):
            check_cut((dim_of(start, stop),), vector.node.shape)

    @cache
    def piece(start: int, stop: int, times: int) -> Any:
        at = bisect_right(starts, start) - 1
        value, before, dim = vectors[at], dim_of(starts[at], start), dim_of(start, stop)
        if stop - start < sizes[at]:
            data = (len(before), len(before) + len(dim))
            value = Tracer(node("split", (value.node,), data, (dim,), where_called()))
        return value if times == 1 else as_vector(_scalar(value), times)

    return [
        joined([piece(*run) for run in runs], [(b - a) * n for a, b, n in runs])
        for runs in of_orders
    ]


def in_order(array: Array, order: Tensor) -> Any:
    """The vector of a flat array's units in another order."""
    (value,) = regrouped([array.value], [prod(array.base)], [order])
    return value


def _scalar(value: Any) -> Any:
    """A vector of one unit as a scalar."""
    return reductions.sum(value) if isinstance(value, Tracer) and value.node.shape else value


def joined(values: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Vectors, scalars and numbers one after another; of one unit a scalar."""
    if sum(sizes) == 1:
        return _scalar(values[0])
    vectors = [as_vector(value, size) for value, size in zip(values, sizes, strict=True)]
    return vectors[0] if len(vectors) == 1 else functions.concat(*vectors)
