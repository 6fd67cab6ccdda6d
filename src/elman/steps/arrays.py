"""Arrays of one sample as values of a formula: scalars, vectors, matrices, and slices of these.

torch's tensors have any number of axes; a formula has scalars, vectors and matrices. An
:class:`Array` has the shape that torch sees, with the axis of samples as one of size 1 (or of as
many rows as each sample has in it), and a value along the axes that it holds: those longer than
one along which it is not merely repeated. The value has one of four forms:

- *uniform*: a number or a scalar; no axis is held;
- *flat*: a vector, its units in the order of rows;
- *matrix*: along two axes;
- *slices*: an array for each place along the first axis that is held.

Axes that are not held cost nothing: they are inserted, left out and repeated in ``shape`` alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from functools import reduce as fold
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor

from elman.errors import StepError
from elman.frontend import functions, matrices, reductions
from elman.frontend.dims import check_cut
from elman.frontend.draws import repeat_number
from elman.frontend.heads import cut_dim
from elman.frontend.lines import where_called
from elman.frontend.trace import (
    AlongAxis,
    Tracer,
    is_number,
    lift,
    matrix_shape,
    per_sample,
    reblocked,
)
from elman.ir.graph import Rate, node
from elman.ir.types import Dim, is_matrix, matrix_axes

Shape = tuple[int, ...]
MOST_SLICES = 64
_MOST_PIECES = 4096  # of a vector


class MatrixError(StepError):
    """An operation needs a matrix where leaves were read as vectors: they are read again.

    Attributes:
        leaves: their names.
    """

    def __init__(self, leaves: frozenset[str]) -> None:
        super().__init__(f"{', '.join(sorted(leaves))} as a matrix of each sample")
        self.leaves = leaves


@dataclass(frozen=True, eq=False)
class Array:
    """A value of one sample.

    Attributes:
        value: a number or tracer; of slices, an array of the other held axes at each place.
        base: the shape that is held; an axis that is only repeated has size 1.
        shape: as torch has it.
        batch: which axis is that of samples; None: there is none.
        leaves: of two axes, read as vectors, that it was made of.
    """

    value: Any
    base: Shape
    shape: Shape
    batch: int | None = None
    leaves: frozenset[str] = frozenset()

    @property
    def axes(self) -> list[int]:
        """The axes that are held."""
        return long_axes(self.base)

    @property
    def slices(self) -> bool:
        """Whether its value is a list of arrays."""
        return isinstance(self.value, list)

    @property
    def uniform(self) -> bool:
        """Whether it has one value, the same at each place."""
        return not self.slices and prod(self.base) == 1

    @property
    def matrix(self) -> bool:
        """Whether its value is a matrix, of weights or of a sample."""
        if self.slices or self.uniform:
            return False
        shape = lift(self.value).shape
        return len(shape) == 2 or is_matrix(self.value.node)

    @property
    def flat(self) -> bool:
        """Whether its value is a vector."""
        return not (self.slices or self.uniform or self.matrix)

    @property
    def of_weights(self) -> bool:
        """Whether it depends on weights alone."""
        if self.slices:
            return all(part.of_weights for part in self.value)
        return is_number(self.value) or lift(self.value).rate == Rate.WEIGHT

    @property
    def number(self) -> float | None:
        """Its value, if it is one number; else None."""
        return self.value if is_number(self.value) else None

    def like(self, value: Any, base: Shape | None = None) -> Array:
        """Another value in the same shape."""
        return replace(self, value=value, base=self.base if base is None else base)


def number(value: float, shape: Shape = (), batch: int | None = None) -> Array:
    """A number at each place."""
    return Array(value, (1,) * len(shape), shape, batch)


def refuse(reason: str, hint: str = "") -> StepError:
    """The error of an operation that no formula has; where it stands is added by the reader."""
    return StepError(reason, hint)


def _limited(count: int) -> int:
    if count > MOST_SLICES:
        raise refuse(
            f"an axis of {count} is cut into its slices, of which a formula has {MOST_SLICES}"
        )
    return count


# ---- shapes


def long_axes(shape: Shape) -> list[int]:
    """The axes longer than one."""
    return [axis for axis, size in enumerate(shape) if size != 1]


def put(shape: Shape, axis: int, *sizes: int) -> Shape:
    """A shape with other sizes, or none, in place of an axis."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def broadcast(*shapes: Shape) -> Shape:
    """The shape of an elementwise operation."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result: list[int] = []
    for sizes in zip(*padded, strict=True):
        larger = {size for size in sizes if size != 1}
        if len(larger) > 1:
            raise refuse(f"shapes {[*map(list, shapes)]} do not meet")
        result.append(larger.pop() if larger else 1)
    return tuple(result)


def drop_axis(array: Array, axis: int) -> Array:
    """Without an axis that is not held: it is of one place."""
    batch = array.batch
    if batch is not None:
        batch = None if axis == batch else batch - (axis < batch)
    return replace(array, base=put(array.base, axis), shape=put(array.shape, axis), batch=batch)


def add_axis(array: Array, axis: int) -> Array:
    """With a further axis of size 1."""
    batch = array.batch
    if batch is not None:
        batch += axis <= batch
    base, shape = ((*s[:axis], 1, *s[axis:]) for s in (array.base, array.shape))
    return replace(array, base=base, shape=shape, batch=batch)


def padded(array: Array, rank: int) -> Array:
    """With so many axes: further ones come first."""
    while len(array.shape) < rank:
        array = add_axis(array, 0)
    return array


def expand(array: Array, shape: Shape, batch: int | None) -> Array:
    """An array repeated to a shape."""
    array = padded(array, len(shape))
    return replace(array, shape=broadcast(array.shape, shape), batch=batch)


def _whole(arrays: Sequence[Array], base: Shape, shape: Shape) -> Array:
    """What arrays make together, still without a value."""
    from_right = {len(array.shape) - array.batch for array in arrays if array.batch is not None}
    if len(from_right) > 1:
        raise refuse("it joins different samples")
    batch = len(shape) - from_right.pop() if from_right else None
    leaves = frozenset[str]().union(*[array.leaves for array in arrays])
    return Array(0.0, base, shape, batch, leaves)


# ---- vectors


def as_vector(value: Any, count: int) -> Tracer:
    """A number, a scalar or a vector as a vector of units."""
    if is_number(value):
        return repeat_number(value, (cut_dim((count,)),))
    tracer = Tracer(lift(value))
    if tracer.node.shape:
        return tracer
    return Tracer(node("spread", (tracer.node,), (), (cut_dim((count,)),), where_called()))


def _units(array: Array) -> Tensor:
    """The number of the unit at each place of its base: torch moves numbers as it moves values."""
    return torch.arange(prod(array.base)).view(array.base)


def _runs(order: Sequence[int], starts: Sequence[int]) -> list[tuple[int, int, int]]:
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


def _regrouped(vectors: Sequence[Any], sizes: Sequence[int], orders: Sequence[Tensor]) -> list[Any]:
    """Units of vectors in other orders: runs of neighbours are cut out and joined.

    Args:
        vectors: of so many units; what has one unit is a number or a scalar.
        orders: numbers of units, counted through all vectors.

    Returns:
        For each order a vector; of one unit a scalar.
    """
    starts = [0, *accumulate(sizes)]
    of_orders = [_runs(order.flatten().tolist(), starts) for order in orders]
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
        _joined([piece(*run) for run in runs], [(b - a) * n for a, b, n in runs])
        for runs in of_orders
    ]


def _in_order(array: Array, order: Tensor) -> Any:
    """The vector of a flat array's units in another order."""
    (value,) = _regrouped([array.value], [prod(array.base)], [order])
    return value


def _scalar(value: Any) -> Any:
    """A vector of one unit as a scalar."""
    return reductions.sum(value) if isinstance(value, Tracer) and value.node.shape else value


def _joined(values: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Vectors, scalars and numbers one after another; of one unit a scalar."""
    if sum(sizes) == 1:
        return _scalar(values[0])
    vectors = [as_vector(value, size) for value, size in zip(values, sizes, strict=True)]
    return vectors[0] if len(vectors) == 1 else functions.concat(*vectors)


# ---- matrices


def one_hot(at: int, count: int) -> Tracer:
    """The vector [count] that is 1 at one place."""
    place = node("const", (), (float(at),), where=where_called())
    return Tracer(node("one_hot", (place,), (), (cut_dim((count,)),), where_called()))


def _matrix_of_row(value: Tracer) -> Any:
    """A vector as a matrix of one row; a matrix as it is."""
    if is_matrix(value.node) or len(value.node.shape) == 2:
        return value
    (columns,) = value.node.shape
    return AlongAxis(value.node, 1).to_matrix(matrix_shape(cut_dim((1,)), columns))


def _transposed(matrix: Any) -> Any:
    return Tracer(matrix.node.args[0]) if matrix.node.op == "transpose" else matrix.T


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
    rows = [_matrix_of_row(Tracer(lift(row.value))) for row in unbind(array, first)]
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


def _operand(array: Array, base: Shape) -> Any:
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
    return matrices.outer(*ones) * _operand(array, base)


# ---- what is repeated


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
        copies = concat([one] * _limited(base[axis]), axis)
        return held(replace(copies, shape=array.shape, batch=array.batch), base)
    array = _with_neighbours(array, base)
    return array.like(_in_order(array, _units(array).expand(base)), base)


def materialised(array: Array) -> Array:
    """An array that repeats nothing: its base is its shape."""
    return held(array, array.shape)


# ---- places of an axis


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
        values = _rows_taken(array.value, groups, count, axis == first)
    else:
        if axis != first and array.base[first] > MOST_SLICES and array.leaves:
            raise MatrixError(array.leaves)
        orders = [_units(array).index_select(axis, torch.tensor([*group])) for group in groups]
        values = _regrouped([array.value], [prod(array.base)], orders)
    results: list[Array] = []
    for group, value in zip(groups, values, strict=True):
        base, shape = (put(s, axis, len(group)) for s in (array.base, array.shape))
        made = replace(array, value=value, base=base, shape=shape)
        results.append(of_slices(made, value) if array.slices else made)
    return results


def _rows_taken(
    value: Any, groups: Sequence[Sequence[int]], count: int, of_rows: bool
) -> list[Any]:
    """Matrices of groups of rows, or columns, of a matrix with so many; of one row a vector."""
    matrix = Tracer(lift(value))
    matrix = matrix if of_rows else matrix.T
    runs = [_runs(group, ()) for group in groups]
    ends = sorted({0, count, *[end for row in runs for run in row for end in run[:2]]})
    sizes = [stop - start for start, stop in pairwise(ends)]
    of_weights = len(lift(matrix).shape) == 2
    if of_weights and 1 in sizes:
        raise refuse("a row is taken from a matrix of weights")
    matrix = Tracer(lift(matrix))
    if 1 in sizes:
        parts = _rows_cut(matrix, sizes)
    else:
        parts = functions.split(matrix, ", ".join(map(str, sizes)))
    pieces = dict(zip(ends, parts))
    taken: list[Any] = []
    for row, group in zip(runs, groups, strict=True):
        found = [
            pieces[at] for a, b, times in row for at in ends if a <= at < b for _ in range(times)
        ]
        taken.append(found[0] if len(group) == 1 else functions.concat(*map(_matrix_of_row, found)))
    return [
        rows if of_rows or len(group) == 1 else rows.T
        for rows, group in zip(taken, groups, strict=True)
    ]


def _rows_cut(matrix: Tracer, sizes: Sequence[int]) -> list[Tracer]:
    """Runs of rows of a matrix of a sample: matrices, and vectors where there is one row.

    The matrix is cut where it stands: its rows are no gate blocks, which would be cut wherever
    there are as many.
    """
    rows, columns = matrix_axes(matrix.node)
    dim = tuple([(size, columns) for size in sizes])
    whole = reblocked(reblocked(matrix.node, ((rows, columns),)), dim)
    parts: list[Tracer] = []
    for at, size in enumerate(sizes):
        part = node("split", (whole,), (at, at + 1), ((dim[at],),), where_called())
        parts.append(reductions.sum(Tracer(part), axis=0) if size == 1 else Tracer(part))
    return parts


def rolled(array: Array, axis: int, shift: int) -> Array:
    """A matrix of a sample whose rows, or columns, are each so much further, round the end."""
    is_row = axis == array.axes[0]
    matrix = lift(array.value if is_row else array.value.T)
    moved = Tracer(node("roll", (matrix,), (shift,), matrix.shape, where_called()))
    return array.like(moved if is_row else moved.T)


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
        (row,) = _rows_taken(array.value, [[at]], array.base[axis], axis == first)
        return drop_axis(array.like(row, put(array.base, axis, 1)), axis)
    return drop_axis(cut(array, axis, [1] * array.base[axis])[at], axis)


def unbind(array: Array, axis: int) -> list[Array]:
    """The array at each place of an axis."""
    count = array.shape[axis]
    if array.base[axis] == 1:
        return [drop_axis(array, axis)] * count
    if array.matrix or (array.slices and axis == array.axes[0]):
        return [pick(array, axis, at) for at in range(_limited(count))]
    return [drop_axis(part, axis) for part in cut(array, axis, [1] * _limited(count))]


def stack(arrays: Sequence[Array], axis: int) -> Array:
    """Arrays of one shape along a new axis."""
    return concat([add_axis(array, axis) for array in arrays], axis)


def by_slices(f: Callable[..., Array], arrays: Sequence[Array], axis: int) -> Array:
    """Apply a function to the slices of arrays of one rank along an axis."""
    count = _limited(max(array.base[axis] for array in arrays))
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
    whole = _whole(arrays, base, shape)
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
    order = [(_units(a) + start).expand(b) for a, b, start in zip(arrays, bases, starts)]
    (value,) = _regrouped([array.value for array in arrays], sizes, [torch.cat(order, axis)])
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
            values.append(_matrix_of_row(Tracer(lift(row))))
            continue
        value = whole_matrix(array, base) if array.uniform else _operand(array, base)
        values.append(value if of_rows else Tracer(per_sample(lift(value))).T)
    joined = functions.concat(*values)
    return joined if of_rows else joined.T


# ---- operations


def combine(f: Callable[..., Any], *arrays: Array) -> Array:
    """Apply an elementwise function of tracers, with torch's broadcasting."""
    shape = broadcast(*[array.shape for array in arrays])
    arrays = tuple([padded(array, len(shape)) for array in arrays])
    base = broadcast(*[array.base for array in arrays])
    whole = _whole(arrays, base, shape)
    if all(array.uniform for array in arrays):
        return whole.like(f(*[array.value for array in arrays]))
    sliced = any(array.slices for array in arrays)
    if len(whole.axes) == 2 and not sliced:
        is_outer = not any(array.base == base for array in arrays)
        if is_outer or any(array.matrix for array in arrays):
            if all(a.of_weights for a in arrays) and not all(a.uniform or a.matrix for a in arrays):
                raise refuse("a matrix of weights is made of vectors")
            return whole.like(f(*[_operand(array, base) for array in arrays]))
    if sliced or (len(whole.axes) > 2 and any(a.base != base and not a.uniform for a in arrays)):
        rows = by_slices(lambda *row: combine(f, *row), arrays, whole.axes[0])
        return replace(rows, shape=shape, leaves=whole.leaves)
    return whole.like(f(*[a.value if a.uniform else held(a, base).value for a in arrays]))


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
        return moved.like(_transposed(to_matrix(array).value))
    if array.flat:
        return moved.like(_in_order(array, _units(array).permute(*order)))
    first = long[0]
    rest = [axis - (axis > first) for axis in order if axis != first]
    rows = [permute(row, rest) for row in unbind(array, first)]
    return replace(stack(rows, order.index(first)), batch=batch)


def squeeze(array: Array, axes: Sequence[int]) -> Array:
    """Without some axes of size 1."""
    for axis in sorted(axes, reverse=True):
        array = drop_axis(array, axis)
    return array


_FOLDS: dict[str, Callable[..., Any]] = {
    "sum": lambda a, b: a + b,
    "amax": functions.maximum,
}


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
    result = _whole([a, b], (*lead, I, K), shape)
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
        return result.like(_transposed(to_matrix(b).value) @ a.value)
    if K == 1:
        return result.like(to_matrix(a).value @ b.value)
    if b.of_weights and not (a.matrix or a.of_weights):
        rows = [_transposed(to_matrix(b).value) @ row.value for row in unbind(a, rank - 2)]
        return result.like(_joined(rows, [K] * I))
    if a.of_weights and b.of_weights:
        raise refuse("weights are multiplied with one another")
    return result.like(to_matrix(a).value @ to_matrix(b).value)
