"""Kernel arguments from the tensors of one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from elman.engines.c.context import Arity
from elman.engines.call import Call

NO_ROWS: tuple[tuple[Any, ...], ...] = ((), (), ())
address = Tensor.data_ptr
contiguous = Tensor.contiguous


def address_or_null(value: Tensor | None) -> int:
    """Address of a tensor; 0 for None."""
    return 0 if value is None else value.data_ptr()


def contiguous_or_none(value: Tensor | None) -> Tensor | None:
    """A contiguous tensor of the same values; None for None."""
    return None if value is None else value.contiguous()


def rows_of(x: Tensor, joined: bool = True) -> tuple[Tensor, int, int]:
    """A tensor [T, B, ...] as rows: itself if it can be, else a copy; (tensor, t, row).

    Args:
        x: the tensor.
        joined: rows of several steps are read at once, so all must be at one distance. Else those
            of a step must, and one that is expanded over time is read where it lies.
    """
    T, B, *inner = x.shape
    if x.is_contiguous():
        row = inner[0] if inner else 1
        return x, B * row, row
    t, b, *inner = x.stride()
    if inner and inner[0] != 1 and x.shape[2] > 1:
        if t == 0 and b == 0:  # an expanded gradient: one row serves all
            return x[0, 0].contiguous(), 0, 0
        x = x.contiguous()
        t, b = x.stride()[:2]
    elif joined and t != B * b and B > 1 and T > 1:
        x = x.contiguous()
        t, b = x.stride()[:2]
    return x, t, t if B == 1 else b


class Arguments:
    """Inputs and weights as kernel arguments, for both directions.

    Args:
        shape: how many there are.
        joined: whether the rows of each input are read over several steps at once.
    """

    def __init__(self, shape: Arity, joined: Sequence[bool]) -> None:
        self._joined = tuple(joined)
        self._no_inputs = (0,) * (not shape.inputs)
        self._no_weights = (0,) * (not shape.weights)

    def of(self, call: Call) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Tensors to keep alive, and numbers for the context."""
        inputs = call.inputs
        if call.packed is not None:
            inputs = tuple(value.unsqueeze(1) for value in inputs)
        rowed, distances, rows = zip(*map(rows_of, inputs, self._joined)) if inputs else NO_ROWS
        matrices = tuple(map(contiguous, call.weights))
        numbers = (
            *map(address, rowed),
            *self._no_inputs,
            *distances,
            *self._no_inputs,
            *rows,
            *self._no_inputs,
            *map(address, matrices),
            *self._no_weights,
        )
        return (*rowed, *matrices), numbers
