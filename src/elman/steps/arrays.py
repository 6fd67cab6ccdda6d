"""Arrays of one sample as values of a formula: scalars, vectors, matrices, and slices of these.

torch's tensors have any number of axes; a formula has scalars, vectors and matrices. An
:class:`Array` has the shape that torch sees, with the axis of samples as one of size 1 (or of as
many rows as each sample has in it), and one of four forms:

- *uniform*: a number or a scalar, the same at each place;
- *flat*: a vector, its units in the order of rows;
- *matrix*: along two axes;
- *slices*: an array for each place along the first axis longer than one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce as fold
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from elman.errors import StepError
from elman.frontend import functions, matrices, reductions
from elman.frontend.dims import check_cut
from elman.frontend.draws import repeat_number
from elman.frontend.heads import cut_dim
from elman.frontend.lines import where_called
from elman.frontend.trace import (
    AlongAxis,
    Tracer,
    Transposed,
    is_number,
    lift,
    matrix_shape,
    per_sample,
)
from elman.ir.graph import Rate, node
from elman.ir.types import is_matrix

Shape = tuple[int, ...]
_FEW = 32  # rows that a matrix is cut into one by one
_MOST = 64  # slices, or rows that a vector is cut into


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
        value: a number or tracer; of slices, arrays without that axis.
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


def long_axes(shape: Shape) -> list[int]:
    """The axes longer than one."""
    return [axis for axis, size in enumerate(shape) if size != 1]


def _batch_of(arrays: Sequence[Array], rank: int) -> int | None:
    from_right = {len(array.shape) - array.batch for array in arrays if array.batch is not None}
    if len(from_right) > 1:
        raise refuse("it joins different samples")
    return rank - from_right.pop() if from_right else None


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


def _padded(array: Array, rank: int) -> Array:
    lead = (1,) * (rank - len(array.shape))
    if not lead:
        return array
    value: Any = array.value
    batch = None if array.batch is None else array.batch + len(lead)
    base, shape = lead + array.base, lead + array.shape
    if array.slices:
        value = [_padded(part, rank - 1) for part in value]
    return Array(value, base, shape, batch, array.leaves)


def combine(f: Callable[..., Any], *arrays: Array) -> Array:
    """Apply an elementwise function of tracers, with torch's broadcasting."""
    shape = broadcast(*[array.shape for array in arrays])
    padded = [_padded(array, len(shape)) for array in arrays]
    base = broadcast(*[array.base for array in padded])
    leaves = frozenset[str]().union(*[array.leaves for array in arrays])
    whole = Array(0.0, base, shape, _batch_of(arrays, len(shape)), leaves)
    return replace(whole, value=_combined(f, padded, whole))


def _combined(f: Callable[..., Any], arrays: list[Array], whole: Array) -> Any:
    axes = long_axes(whole.base)
    if all(array.uniform for array in arrays):
        return f(*[array.value for array in arrays])
    held = any(array.slices for array in arrays)
    is_outer = len(axes) == 2 and not any(array.base == whole.base for array in arrays)
    in_matrix = not held and len(axes) == 2
    in_matrix = in_matrix and (is_outer or any(array.matrix for array in arrays))
    if in_matrix:
        if all(a.of_weights for a in arrays) and not all(a.uniform or a.matrix for a in arrays):
            raise refuse("a matrix of weights is made of vectors")
        return f(*[_matrix_operand(array, whole.base) for array in arrays])
    if held or (len(axes) > 2 and any(a.base != whole.base and not a.uniform for a in arrays)):
        first = axes[0]
        count = _limited(whole.base[first])
        inner = drop_axis(replace(whole, value=0.0), first)
        parts: list[Array] = []
        for at in range(count):
            row = [pick(array, first, at) for array in arrays]
            base = broadcast(*[part.base for part in row])
            part = replace(inner, base=base)
            parts.append(replace(part, value=_combined(f, row, part)))
        return _joined(parts) if all(part.flat or part.uniform for part in parts) else parts
    return f(*[_widened(array, whole.base) for array in arrays])


def _limited(count: int) -> int:
    if count > _MOST:
        raise refuse(f"an axis of {count} is cut into its slices, of which a formula has {_MOST}")
    return count


def drop_axis(array: Array, axis: int) -> Array:
    """Without an axis of size 1 in ``base``: it is of one place."""
    batch = array.batch
    if batch is not None:
        batch = batch - 1 if axis < batch else None if axis == batch else batch
    base, shape = (s[:axis] + s[axis + 1 :] for s in (array.base, array.shape))
    return replace(array, base=base, shape=shape, batch=batch)


def add_axis(array: Array, axis: int, size: int = 1) -> Array:
    """With a further axis, along which it is repeated."""
    batch = array.batch
    if batch is not None and axis <= batch:
        batch += 1
    base = (*array.base[:axis], 1, *array.base[axis:])
    shape = (*array.shape[:axis], size, *array.shape[axis:])
    value = array.value
    if array.slices:
        first = long_axes(array.base)[0]
        inner = axis if axis <= first else axis - 1
        value = [add_axis(part, inner, size) for part in value]
    return Array(value, base, shape, batch, array.leaves)


def as_vector(value: Any, count: int) -> Tracer:
    """A number, a scalar or a vector as a vector of units."""
    if is_number(value):
        return repeat_number(value, (cut_dim((count,)),))
    tracer = Tracer(lift(value))
    if tracer.node.shape:
        return tracer
    return Tracer(node("spread", (tracer.node,), (), (cut_dim((count,)),), where_called()))


def cut_vector(value: Tracer, sizes: Sequence[int]) -> list[Tracer]:
    """Parts of a vector; of one unit a scalar."""
    if len(sizes) == 1:
        return [value]
    dims = [cut_dim((size,)) for size in sizes]
    whole = functions.sum_of(dims)
    check_cut((whole,), value.node.shape)
    parts: list[Tracer] = []
    start = 0
    for size, dim in zip(sizes, dims, strict=True):
        data = (start, start + len(dim))
        part = Tracer(node("split", (value.node,), data, (dim,), where_called()))
        parts.append(reductions.sum(part) if size == 1 else part)
        start += len(dim)
    return parts


def _joined(parts: Sequence[Array]) -> Any:
    """The vector of flat arrays one after another."""
    return join_vectors([part.value for part in parts], [prod(part.base) for part in parts])


def join_vectors(values: Sequence[Any], sizes: Sequence[int]) -> Tracer:
    """Vectors and scalars one after another."""
    vectors = [as_vector(value, size) for value, size in zip(values, sizes, strict=True)]
    return vectors[0] if len(vectors) == 1 else functions.concat(*vectors)


def _widened(array: Array, base: Shape) -> Any:
    """A flat array repeated along the axes where ``base`` is longer."""
    if array.uniform:
        return array.value
    value, held = array.value, array.base
    for axis in reversed(range(len(base))):
        if held[axis] != 1 or base[axis] == 1:
            continue
        times, outer, inner = base[axis], prod(held[:axis]), prod(held[axis + 1 :])
        if inner == 1:
            wide = repeat_number(0.0, (cut_dim((outer * times,)),))
            value = reductions.spread(value, wide) if outer > 1 else as_vector(value, times)
        else:
            rows = cut_vector(value, [inner] * _limited(outer))
            value = join_vectors(
                [row for row in rows for _ in range(_limited(times))], [inner] * outer * times
            )
        held = (*held[:axis], times, *held[axis + 1 :])
    return value


def _matrix_operand(array: Array, base: Shape) -> Any:
    """An operand of an elementwise operation of matrices."""
    if array.uniform:
        return array.value
    first, second = long_axes(base)
    if array.matrix:
        return array.value
    shape = matrix_shape(cut_dim((base[first],)), cut_dim((base[second],)))
    if long_axes(array.base) == [first]:
        return AlongAxis(array.value.node, 0).to_matrix(shape)
    if long_axes(array.base) == [second]:
        return AlongAxis(array.value.node, 1).to_matrix(shape)
    return to_matrix(array).value


def to_matrix(array: Array) -> Array:
    """A flat array of two axes as a matrix. Raises MatrixError: it is made of leaves that can be
    matrices from the beginning."""
    if array.matrix:
        return array
    if array.leaves:
        raise MatrixError(array.leaves)
    if array.of_weights:
        raise refuse("a matrix is made of a vector of weights")
    rows, columns = [array.base[axis] for axis in long_axes(array.base)]
    parts = cut_vector(array.value, [columns] * _limited(rows))
    terms = [matrices.outer(one_hot(at, rows), part) for at, part in enumerate(parts)]
    return array.like(fold(lambda a, b: a + b, terms))


def one_hot(at: int, count: int) -> Tracer:
    """The vector [count] that is 1 at one place."""
    place = node("const", (), (float(at),), where=where_called())
    return Tracer(node("one_hot", (place,), (), (cut_dim((count,)),), where_called()))


def to_flat(array: Array) -> Array:
    """Any array as a vector of all its units, in the order of rows."""
    if array.slices:
        parts = [to_flat(part) for part in array.value]
        first = long_axes(array.base)[0]
        base = broadcast(*[part.base for part in parts])
        wide = [part.like(_widened(part, base), base) for part in parts]
        return array.like(_joined(wide), (*base[:first], len(parts), *base[first:]))
    if not array.matrix:
        return array
    if lift(array.value).rate == Rate.WEIGHT:
        raise refuse("a matrix of weights becomes a vector")
    rows, columns = [array.base[axis] for axis in long_axes(array.base)]
    vectors = [_row_of(array.value, at, rows) for at in range(_limited(rows))]
    return array.like(join_vectors(vectors, [columns] * rows))


def _row_of(matrix: Any, at: int, rows: int) -> Tracer:
    return matrix.T @ one_hot(at, rows)


def materialised(array: Array) -> Array:
    """An array that repeats nothing: its base is its shape."""
    if array.base == array.shape:
        return array
    axes = [axis for axis in range(len(array.shape)) if array.base[axis] != array.shape[axis]]
    if array.slices or array.matrix:
        axis = axes[0]
        copy = drop_axis(replace(array, shape=array.base), axis)
        if array.slices:
            first = long_axes(array.base)[0]
            inner = axis if axis < first else axis - 1
            copy = replace(copy, value=[drop_axis(part, inner) for part in array.value])
        return materialised(stack([copy] * _limited(array.shape[axis]), axis))
    if array.uniform:
        value = as_vector(array.value, prod(array.shape))
    else:
        value = _widened(array, array.shape)
    return array.like(value, array.shape)


def parts(array: Array, axis: int, sizes: Sequence[int]) -> list[Array]:
    """An array cut along an axis."""
    if array.base[axis] == 1:
        shapes = [(*array.shape[:axis], size, *array.shape[axis + 1 :]) for size in sizes]
        return [_reshaped_copies(array, shape) for shape in shapes]
    return _parts(array, axis, sizes)


def _reshaped_copies(array: Array, shape: Shape) -> Array:
    value = array.value
    if array.slices:
        first = long_axes(array.base)[0]
        inner = shape[:first] + shape[first + 1 :]
        value = [_reshaped_copies(part, inner) for part in value]
    return replace(array, value=value, shape=shape)


def _parts(array: Array, axis: int, sizes: Sequence[int]) -> list[Array]:
    axes = long_axes(array.base)

    def piece(value: Any, size: int) -> Array:
        base, shape = ((*s[:axis], size, *s[axis + 1 :]) for s in (array.base, array.shape))
        return replace(array, value=value, base=base, shape=shape)

    if array.slices:
        first = axes[0]
        if axis == first:
            ends = [0, *accumulate(sizes)]
            rows = [array.value[a:b] for a, b in pairwise(ends)]
            return [
                piece(row, len(row)) if len(row) != 1 else add_axis(row[0], axis) for row in rows
            ]
        inner = axis if axis < first else axis - 1
        cut = [parts(part, inner, sizes) for part in array.value]
        return [piece([row[k] for row in cut], size) for k, size in enumerate(sizes)]
    if array.matrix:
        return [piece(value, size) for value, size in _matrix_parts(array, axis, sizes)]
    if axis == axes[0]:
        inner = prod(array.base[axis + 1 :])
        values = cut_vector(array.value, [size * inner for size in sizes])
        return [piece(value, size) for value, size in zip(values, sizes, strict=True)]
    first, inner = axes[0], prod(array.base[axes[0] + 1 :])
    rows = cut_vector(array.value, [inner] * _limited(array.base[first]))
    cut = [_parts(drop_axis(array.like(row), first), axis - 1, sizes) for row in rows]
    return [piece(_joined([row[k] for row in cut]), size) for k, size in enumerate(sizes)]


def _matrix_parts(array: Array, axis: int, sizes: Sequence[int]) -> list[tuple[Any, int]]:
    matrix, is_row = array.value, axis == long_axes(array.base)[0]
    if isinstance(matrix, Transposed):
        matrix = Tracer(lift(matrix))
    matrix = matrix if is_row else matrix.T
    count = sum(sizes)
    start = 0
    cut: list[tuple[Any, int]] = []
    of_weights = len(lift(matrix).shape) == 2
    if of_weights or all(size > 1 for size in sizes):
        if any(size == 1 for size in sizes):
            raise refuse("a row is taken from a matrix of weights")
        for part, size in zip(
            functions.split(Tracer(lift(matrix)), ", ".join(map(str, sizes))), sizes, strict=True
        ):
            cut.append((part if is_row else part.T, size))
        return cut
    if count > _FEW:
        raise refuse("some rows are taken from a matrix")
    rows = [_row_of(Tracer(lift(matrix)), at, count) for at in range(count)]
    for size in sizes:
        places = [matrices.outer(one_hot(k, size), rows[start + k]) for k in range(size)]
        part = fold(lambda a, b: a + b, places) if size > 1 else rows[start]
        cut.append((part if is_row or size == 1 else part.T, size))
        start += size
    return cut


def pick(array: Array, axis: int, at: int) -> Array:
    """The array at one place of an axis, without it."""
    if array.base[axis] == 1:
        dropped = drop_axis(array, axis)
        if array.slices:
            first = long_axes(array.base)[0]
            inner = axis if axis < first else axis - 1
            value = [pick(part, inner, 0) for part in array.value]
            return replace(dropped, value=value)
        return dropped
    if array.slices and axis == long_axes(array.base)[0]:
        return array.value[at]
    if array.matrix:
        return _pick_of_matrix(array, axis, at)
    sizes = [1] * array.base[axis]
    return drop_axis(parts(array, axis, sizes)[at], axis)


def _pick_of_matrix(array: Array, axis: int, at: int) -> Array:
    if lift(array.value).rate == Rate.WEIGHT:
        raise refuse("a row is taken from a matrix of weights")
    matrix = array.value if axis == long_axes(array.base)[0] else array.value.T
    row = _row_of(Tracer(lift(matrix)), at, array.base[axis])
    return drop_axis(replace(array, value=row), axis)


def unbind(array: Array, axis: int) -> list[Array]:
    """The array at each place of an axis."""
    count = array.shape[axis]
    if array.base[axis] == 1:
        return [pick(array, axis, 0)] * count
    if array.matrix or array.slices:
        return [pick(array, axis, at) for at in range(_limited(count))]
    return [drop_axis(part, axis) for part in parts(array, axis, [1] * _limited(count))]


def stack(arrays: Sequence[Array], axis: int) -> Array:
    """Arrays of one shape along a new axis."""
    return concat([add_axis(array, axis) for array in arrays], axis)


def concat(arrays: Sequence[Array], axis: int) -> Array:
    """Arrays one after another along an axis."""
    if len(arrays) == 1:
        return arrays[0]
    rank = len(arrays[0].shape)
    sizes = [array.shape[axis] for array in arrays]
    total = sum(sizes)
    common = broadcast(*[_without(array.base, axis) for array in arrays])
    base = (*common[:axis], total, *common[axis + 1 :])
    shape = (*arrays[0].shape[:axis], total, *arrays[0].shape[axis + 1 :])
    leaves = frozenset[str]().union(*[array.leaves for array in arrays])
    whole = Array(0.0, base, shape, _batch_of(arrays, rank), leaves)
    if whole.batch == axis:
        raise refuse("it joins different samples")
    bases = [(*common[:axis], size, *common[axis + 1 :]) for size in sizes]
    before = [a for a in long_axes(base) if a < axis]
    if not any(array.slices or array.matrix for array in arrays):
        if not before:
            values = [_filled(array, b) for array, b in zip(arrays, bases, strict=True)]
            return replace(whole, value=join_vectors(values, [*map(prod, bases)]))
    elif before == [] and (any(a.slices for a in arrays) or len(long_axes(base)) > 2):
        rows = [part for array in arrays for part in unbind(array, axis)]
        return replace(whole, value=rows)
    elif len(long_axes(base)) == 2 and not any(array.slices for array in arrays):
        return replace(whole, value=_concat_matrices(arrays, bases, axis == long_axes(base)[0]))
    first = before[0]
    rows = [
        concat([pick(array, first, at) for array in arrays], axis - 1)
        for at in range(_limited(base[first]))
    ]
    if all(row.flat or row.uniform for row in rows):
        inner = (*base[:first], *base[first + 1 :])
        return replace(whole, value=_joined([r.like(_filled(r, inner), inner) for r in rows]))
    return replace(whole, value=rows)


def _without(base: Shape, axis: int) -> Shape:
    return (*base[:axis], 1, *base[axis + 1 :])


def _filled(array: Array, base: Shape) -> Any:
    """The units of a flat or uniform array, repeated to a base."""
    if array.uniform:
        return as_vector(array.value, prod(base)) if prod(base) > 1 else array.value
    return _widened(array, base)


def _concat_matrices(arrays: Sequence[Array], bases: Sequence[Shape], of_rows: bool) -> Any:
    if all(array.of_weights for array in arrays) and not all(a.matrix for a in arrays):
        raise refuse("a matrix of weights is made of vectors")
    values: list[Any] = []
    for array, base in zip(arrays, bases, strict=True):
        if 1 in [base[axis] for axis in long_axes(bases[0])] or len(long_axes(base)) < 2:
            return _concat_rows_of_one(arrays, bases, of_rows)
        if array.uniform:
            axes = [base[axis] for axis in long_axes(base)]
            ones = matrices.outer(*[repeat_number(1.0, (cut_dim((n,)),)) for n in axes])
            value = array.value * ones
        else:
            value = _matrix_operand(array, base)
        values.append(Tracer(per_sample(lift(value))) if not of_rows else value)
    if of_rows:
        return functions.concat(*values)
    return functions.concat(*[value.T for value in values]).T


def _concat_rows_of_one(arrays: Sequence[Array], bases: Sequence[Shape], of_rows: bool) -> Any:
    """Matrices and rows one after another: each row at its place in a matrix of zeros."""
    axes = sorted({axis for base in bases for axis in long_axes(base)})
    along = axes[0] if of_rows else axes[-1]
    total = sum(base[along] for base in bases)
    if total > _FEW:
        raise refuse("a row is joined to a matrix")
    terms: list[Any] = []
    for array, base in zip(arrays, bases, strict=True):
        for k in range(base[along]):
            row = pick(array, along, k)
            vector = as_vector(
                _filled(row, (*base[:along], *base[along + 1 :])), prod(base) // base[along]
            )
            pair = one_hot(len(terms), total), vector
            terms.append(matrices.outer(*(pair if of_rows else reversed(pair))))
    return fold(lambda a, b: a + b, terms)


def reshape(array: Array, shape: Shape, batch: int | None) -> Array:
    """The same units, in the order of rows, in another shape."""
    if prod(shape) != prod(array.shape):
        raise refuse("samples and units are regrouped")
    if shape == array.shape and batch == array.batch:
        return array
    _check_samples_first(array, shape, batch)
    if array.uniform:
        return Array(array.value, (1,) * len(shape), shape, batch, array.leaves)
    if [n for n in array.shape if n != 1] == [n for n in shape if n != 1]:
        return _moved_ones(array, shape, batch)
    array = materialised(array)
    if array.slices:
        first = long_axes(array.base)[0]
        kept = next((axis for axis in long_axes(shape)), None)
        if kept is not None and shape[kept] == array.base[first]:
            inner = (*shape[:kept], *shape[kept + 1 :])
            rest = batch
            if batch is not None:
                rest = None if batch == kept else batch - 1 if kept < batch else batch
            value = [reshape(replace(part, batch=None), inner, None) for part in array.value]
            value = [replace(part, batch=rest) for part in value]
            return Array(value, shape, shape, batch, array.leaves)
    if array.of_weights and (array.matrix or array.slices):
        raise refuse("a matrix of weights changes its shape")
    array = to_flat(array)
    return Array(array.value, shape, shape, batch, array.leaves)


def _check_samples_first(array: Array, shape: Shape, batch: int | None) -> None:
    """Check that a view leaves samples apart."""
    if array.batch is None or batch is None:
        if array.batch is not batch:
            raise refuse("samples and units are regrouped")
        return
    before, after = prod(array.shape[: array.batch]), prod(shape[:batch])
    if before != after or (before > 1 and array.shape[array.batch] != shape[batch]):
        raise refuse("samples and units are regrouped")


def _moved_ones(array: Array, shape: Shape, batch: int | None) -> Array:
    """Axes of size 1 inserted or left out."""
    held = iter([b for b, n in zip(array.base, array.shape, strict=True) if n != 1])
    base = tuple([1 if n == 1 else next(held) for n in shape])
    value = array.value
    if array.slices:
        first = long_axes(array.base)[0]
        number_of = [a for a in range(len(array.shape)) if array.shape[a] != 1].index(first)
        place = [a for a in range(len(shape)) if shape[a] != 1][number_of]
        inner = (*shape[:place], *shape[place + 1 :])
        rest = batch
        if batch is not None:
            rest = None if batch == place else batch - 1 if place < batch else batch
        value = [
            replace(_moved_ones(replace(part, batch=None), inner, None), batch=rest)
            for part in array.value
        ]
    return Array(value, base, shape, batch, array.leaves)


def permute(array: Array, order: Sequence[int]) -> Array:
    """The axes in another order."""
    base, shape = (tuple([s[axis] for axis in order]) for s in (array.base, array.shape))
    batch = None if array.batch is None else [*order].index(array.batch)
    moved = Array(array.value, base, shape, batch, array.leaves)
    long = [axis for axis in order if array.base[axis] != 1]
    if array.slices:
        first = long[0]
        rest = [axis - (axis > first) for axis in order if axis != first]
        rows = [permute(row, rest) for row in unbind(array, first)]
        return replace(moved, value=rows)
    if long == sorted(long):
        return moved
    if len(long) == 2:
        matrix = (array if array.matrix else to_matrix(array)).value
        return replace(moved, value=_transposed(matrix))
    first = long[0]
    rest = [axis - (axis > first) for axis in order if axis != first]
    rows = [permute(row, rest) for row in unbind(array, first)]
    if all(row.flat for row in rows):
        return replace(moved, value=_joined(rows))
    return replace(moved, value=rows)


def reduced(op: str, array: Array, axes: Sequence[int], keep: bool) -> Array:
    """A reduction of ``elman.ops`` (sum, mean, var, amax) over some axes."""
    for axis in axes:
        if axis == array.batch:
            raise refuse("it joins different samples")
    over = [axis for axis in axes if array.base[axis] != 1]
    repeated = prod([array.shape[axis] for axis in axes if array.base[axis] == 1])
    if op == "var" and repeated > 1 and over:
        array, repeated = materialised(array), 1
        over = [axis for axis in axes if array.base[axis] != 1]
    result = _reduced(op, array, over)
    if op == "var" and not over:
        result = combine(lambda v: 0.0 * v, result)
    if op == "sum" and repeated > 1:
        result = combine(lambda v: repeated * v, result)
    shape = tuple([1 if axis in axes else n for axis, n in enumerate(array.shape)])
    result = _reshaped_copies(result, shape)
    if not keep:
        for axis in sorted(axes, reverse=True):
            result = pick(result, axis, 0)
    return result


_FOLDS: dict[str, Callable[..., Any]] = {
    "sum": lambda a, b: a + b,
    "amax": functions.maximum,
}


def _reduced(op: str, array: Array, over: list[int]) -> Array:
    """A reduction over axes of the base, which keep one place each."""
    base = tuple([1 if axis in over else n for axis, n in enumerate(array.base)])
    if not over:
        return array
    axes = long_axes(array.base)
    if op in ("mean", "var") and (array.slices or not _at_once(array, over)):
        count = prod([array.base[axis] for axis in over])
        mean = combine(lambda v: v / count, _reduced("sum", array, over))
        if op == "mean":
            return mean
        off = combine(lambda v, m: (v - m) * (v - m), array, mean)
        return combine(lambda v: v / count, _reduced("sum", off, over))
    result = replace(array, base=base)
    if array.matrix:
        if len(over) == 2:
            return replace(result, value=getattr(reductions, op)(array.value))
        axis = axes.index(over[0])
        value = getattr(reductions, op)(Tracer(lift(array.value)), axis=axis)
        return replace(result, value=value)
    if not array.slices and _at_once(array, over):
        groups = prod(base)
        value = getattr(reductions, op)(array.value, groups=groups)
        return replace(result, value=value)
    first = axes[0]
    rows = unbind(array, first)
    if first in over:
        total = fold(lambda a, b: combine(_FOLDS[op], a, b), rows)
        inner = [axis - (axis > first) for axis in over if axis != first]
        return replace(add_axis(_reduced(op, total, inner), first), shape=array.shape)
    inner = [axis - (axis > first) for axis in over]
    return replace(stack([_reduced(op, row, inner) for row in rows], first), shape=array.shape)


def _at_once(array: Array, over: list[int]) -> bool:
    """Whether one reduction, of groups of neighbours, does it."""
    if array.matrix:
        return True
    axes = long_axes(array.base)
    return over == axes[len(axes) - len(over) :]


def matmul(a: Array, b: Array) -> Array:
    """The product of matrices [.., I, J] and [.., J, K], of samples or of weights."""
    rank = len(a.shape)
    if a.batch == rank - 1 or b.batch == rank - 2:
        raise refuse("it joins different samples")
    lead = [axis for axis in range(rank - 2) if a.base[axis] != 1 or b.base[axis] != 1]
    if lead:
        axis = lead[0]
        count = max(a.base[axis], b.base[axis])
        rows = [matmul(pick(a, axis, k), pick(b, axis, k)) for k in range(_limited(count))]
        return stack(rows, axis)
    shape = (*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    batch = a.batch if a.batch is not None else b.batch
    if a.batch is not None and b.batch is not None and a.batch != b.batch:
        raise refuse("it joins different samples")
    I, J, K = a.shape[-2], a.shape[-1], b.shape[-1]
    leaves = a.leaves | b.leaves
    if J == 1:
        return replace(combine(lambda u, v: u * v, a, b), shape=shape, batch=batch)
    base = (*[1] * (rank - 2), I, K)
    result = Array(0.0, base, shape, batch, leaves)
    if (a.uniform and a.number == 0.0) or (b.uniform and b.number == 0.0):
        return replace(result, value=0.0, base=(1,) * rank)
    a, b = _held(a), _held(b)
    if I == 1 and K == 1:
        return replace(result, value=reductions.sum(a.value * b.value))
    if I == 1:
        return replace(result, value=_product(b, a, transposed=True))
    if K == 1:
        return replace(result, value=_product(a, b, transposed=False))
    if a.flat and b.of_weights and not a.of_weights:
        rows = cut_vector(a.value, [J] * _limited(I))
        values = [_product(b, Array(row, (J,), (J,)), transposed=True) for row in rows]
        return replace(result, value=join_vectors(values, [K] * I))
    if a.of_weights and b.of_weights:
        raise refuse("weights are multiplied with one another")
    left, right = to_matrix(a), to_matrix(b)
    return replace(result, value=left.value @ right.value)


def _held(array: Array) -> Array:
    """With its last two axes held."""
    rest = len(array.shape) - 2
    shape = (*array.base[:rest], *array.shape[rest:])
    return materialised(replace(array, shape=shape))


def _transposed(matrix: Any) -> Any:
    return Tracer(matrix.node.args[0]) if matrix.node.op == "transpose" else matrix.T


def _product(matrix: Array, vector: Array, transposed: bool) -> Tracer:
    """The product of a matrix with a vector."""
    if matrix.flat:
        matrix = to_matrix(matrix)
    value = _transposed(matrix.value) if transposed else matrix.value
    return value @ vector.value


def matrix_of(base: Shape, array: Array) -> Any:
    """A value repeated to a whole matrix."""
    rows, columns = [base[axis] for axis in long_axes(base)]
    ones = matrices.outer(
        repeat_number(1.0, (cut_dim((rows,)),)), repeat_number(1.0, (cut_dim((columns,)),))
    )
    return ones * _matrix_operand(array, base) if not array.uniform else ones * array.value
