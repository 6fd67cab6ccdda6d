"""Matrices of a sample: their rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from elman.frontend import functions, reductions
from elman.frontend.heads import cut_dim
from elman.frontend.lines import where_called
from elman.frontend.trace import AlongAxis, Tracer, lift, matrix_shape, reblocked
from elman.ir.graph import node
from elman.ir.types import is_matrix, matrix_axes
from elman.steps.arrays.array import Array, refuse
from elman.steps.arrays.units import runs_of


def one_hot(at: int, count: int) -> Tracer:
    """The vector [count] that is 1 at one place."""
    place = node("const", (), (float(at),), where=where_called())
    return Tracer(node("one_hot", (place,), (), (cut_dim((count,)),), where_called()))


def matrix_of_row(value: Tracer) -> Any:
    """A vector as a matrix of one row; a matrix as it is."""
    if is_matrix(value.node) or len(value.node.shape) == 2:
        return value
    (columns,) = value.node.shape
    return AlongAxis(value.node, 1).to_matrix(matrix_shape(cut_dim((1,)), columns))


def transposed(matrix: Any) -> Any:
    """The transpose; of a transpose the matrix itself."""
    return Tracer(matrix.node.args[0]) if matrix.node.op == "transpose" else matrix.T


def rows_taken(value: Any, groups: Sequence[Sequence[int]], count: int, of_rows: bool) -> list[Any]:
    """Matrices of groups of rows, or columns, of a matrix with so many; of one row a vector."""
    matrix = Tracer(lift(value))
    matrix = matrix if of_rows else matrix.T
    runs = [runs_of(group, ()) for group in groups]
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
        taken.append(found[0] if len(group) == 1 else functions.concat(*map(matrix_of_row, found)))
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
