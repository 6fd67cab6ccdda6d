"""Kernel arguments from the tensors of one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from elman.engines.c.calls.context import Arity
from elman.engines.c.process.memory import address, contiguous, rows_of
from elman.engines.call import Call

NO_ROWS: tuple[tuple[Any, ...], ...] = ((), (), ())


class Arguments:
    """Inputs and weights as kernel arguments, for both directions.

    Args:
        shape: numbers of inputs, states and weights.
        joined: whether a batched phase reads each input's rows of several steps at once.
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
