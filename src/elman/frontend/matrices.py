"""Matrices per sample ``S[K, V]``: functions for cell authors; re-exported as ``elman.ops``."""

from __future__ import annotations

from typing import Any

from elman.frontend.lines import describe, mismatch, refuse, where_called
from elman.frontend.trace import AlongAxis, Tracer, joined, lift, pointwise, vector_dim
from elman.ir.graph import node
from elman.ir.types import is_matrix, matrix_axes

__all__ = ["columns", "outer", "rows", "shift"]


def _along(name: str, v: Any, axis: int) -> Tracer:
    value = lift(v)
    vector_dim(value, name)
    return AlongAxis(value, axis)


def rows(v: Any) -> Tracer:
    """A value for each row of a matrix per sample: [K], repeated over the columns of the matrix
    [K, V] that it meets; of a vector of parts, [2K] of [2K, V].

    Raises:
        TraceError: v is not a vector.

    Example:
        >>> S = rows(sigmoid(h)) * outer(h, c)
    """
    return _along("rows", v, 0)


def columns(v: Any) -> Tracer:
    """A value for each column of a matrix per sample: [V], repeated over the rows of the matrix
    [K, V] that it meets; of a vector of parts, [2V] of [K, 2V].

    Raises:
        TraceError: v is not a vector.

    Example:
        >>> S = columns(sigmoid(c)) * outer(h, c)
    """
    return _along("columns", v, 1)


def outer(k: Any, v: Any) -> Tracer:
    """All products of a unit of k [K] with a unit of v [V], a matrix per sample [K, V]:
    ``rows(k) * columns(v)``. A vector of parts is one axis: ``outer(concat(k, q), v)`` is [2K, V].

    Raises:
        TraceError: k or v is not a vector.

    Example:
        >>> y = outer(h, c) @ c
    """
    return rows(k) * columns(v)


def shift(S: Any, v: Any) -> Tracer:
    """The rows of a matrix per sample [n, H] moved up by one, with v [H] as the last one: a window
    over the last n values of v.

    Raises:
        TraceError: S is no matrix per sample.
        ShapeError: v has another number of units than a row of S.

    Example:
        >>> y = shift(outer(h, c), c) @ c
    """
    matrix, row, where = lift(S), joined(lift(v)), where_called()
    if not is_matrix(matrix):
        refuse(f"shift moves the rows of a matrix, not of {describe(matrix)}", 'state="S[n, H]"')
    n, columns_dim = matrix_axes(matrix)
    if row.shape != ((columns_dim,),):
        raise mismatch("shift", matrix, row, "the new row is a vector [H], of a matrix S[n, H]")
    count = Tracer(node("count", (), (n,), where=where))
    last = node("one_hot", ((count - 1).node,), (), ((n,),), where)
    moved = node("roll", (matrix,), (-1,), matrix.shape, where)
    return pointwise("where", AlongAxis(last, 0), AlongAxis(row, 1), Tracer(moved))
