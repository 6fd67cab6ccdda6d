"""The table of rows, and what rows have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from elman.frontend.trace import pointwise
from elman.steps.arrays.array import Array, number, refuse

Row = Callable[..., Any]
ROWS: dict[str, Row] = {}
BY_CONDITION = "torch.where(condition, new, old), or old.masked_fill(condition, 0)"


@dataclass(frozen=True)
class Facts:
    """What the tape knows of an operation.

    Attributes:
        shape: of its (first) result, with the axis of samples as its rows per sample.
        batch: which axis that is.
        dtype: of its (first) result.
        dtypes: of the tensors it is given.
    """

    shape: tuple[int, ...]
    batch: int | None
    dtype: torch.dtype
    dtypes: tuple[torch.dtype, ...]


def find(name: str, rows: Mapping[str, Any] = ROWS) -> Any:
    """The row of an operation; None: there is none."""
    return rows.get(name) or rows.get(name.partition(".")[0])


def row_of_facts(*names: str) -> Callable[[Row], Row]:
    """Make a function the row of operations; it is called with what the tape knows first."""

    def add(function: Row) -> Row:
        ROWS.update(dict.fromkeys(names, function))
        return function

    return add


def row(*names: str) -> Callable[[Row], Row]:
    """Make a function of an operation's arguments alone the row of operations."""

    def add(function: Row) -> Row:
        row_of_facts(*names)(lambda facts, *args, **kwargs: function(*args, **kwargs))
        return function

    return add


def array_of(value: Any) -> Array:
    """A value as an array."""
    return value if isinstance(value, Array) else number(float(value))


def op_named(name: str) -> Callable[..., Any]:
    """The function of an elementwise op."""
    return lambda *values: pointwise(name, *values)


def axis_of(a: Array, axis: int) -> int:
    """An axis, counted from the first. Raises StepError: it is that of samples."""
    axis = axis % len(a.shape)
    if axis == a.batch:
        raise refuse("it joins different samples")
    return axis
