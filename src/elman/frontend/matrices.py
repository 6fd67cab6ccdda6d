"""Matrices per sample ``S[K, V]``: functions for cell authors; re-exported as ``elman.ops``."""

from __future__ import annotations

from typing import Any

from elman.frontend.lines import describe, refuse
from elman.frontend.trace import AlongAxis, Tracer, lift, vector_dim

__all__ = ["columns", "outer", "rows"]


def _along(name: str, v: Any, axis: int) -> Tracer:
    value = lift(v)
    if len(vector_dim(value, name)) > 1:
        refuse(
            f"{name} takes a vector of one part, not {describe(value)}",
            "cut it first: k, q = split(W @ x, 2)",
        )
    return AlongAxis(value, axis)


def rows(v: Any) -> Tracer:
    """A value for each row of a matrix per sample: [K], repeated over the columns of the matrix
    [K, V] that it meets.

    Raises:
        TraceError: v is not a vector, or has several parts.

    Example:
        >>> S = rows(sigmoid(h)) * outer(h, c)
    """
    return _along("rows", v, 0)


def columns(v: Any) -> Tracer:
    """A value for each column of a matrix per sample: [V], repeated over the rows of the matrix
    [K, V] that it meets.

    Raises:
        TraceError: v is not a vector, or has several parts.

    Example:
        >>> S = columns(sigmoid(c)) * outer(h, c)
    """
    return _along("columns", v, 1)


def outer(k: Any, v: Any) -> Tracer:
    """All products of a unit of k [K] with a unit of v [V], a matrix per sample [K, V]:
    ``rows(k) * columns(v)``.

    Example:
        >>> y = outer(h, c) @ c
    """
    return rows(k) * columns(v)
