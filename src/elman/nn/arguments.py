"""The arguments of one call of a module: under which names they come, and in which type."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.nn.signature import Layout


class Prepared(NamedTuple):
    """A call whose arguments have been checked.

    Attributes:
        inputs, states, layout: as of :class:`Opened`.
        weights: of each layer and direction.
        mask: of resets, in the inner layout; None if there are none.
        lengths: of a padded batch that is packed only inside a compiled program.
        cast: what the results are cast to; None: as they are.
        learned: what a sequence begins with that is given no state [layers · directions, 1, n],
            laid out as ``states``; None where that is zeros.
        given: whether states were given.
    """

    inputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    layout: Layout
    weights: list[list[Tensor]]
    mask: Tensor | None
    lengths: Any
    cast: torch.dtype | None
    learned: tuple[Tensor, ...] | None
    given: bool


def named(x: Any, state: Any, input: Any, hx: Any) -> tuple[Any, Any]:
    """x and the state, under our names or under torch's.

    Raises:
        TypeError: one is there under both; or there is no x.
    """
    for ours, theirs, names in ((x, input, "x and input"), (state, hx, "state and hx")):
        if ours is not None and theirs is not None:
            raise TypeError(f"forward() got {names}, which are the same argument")
    if x is None and input is None:
        raise TypeError("forward() missing 1 required argument: 'x'")
    return (input if x is None else x), (hx if state is None else state)


def device_type(value: Any) -> str:
    """torch's device type of a tensor, of packed rows, or of the first of several."""
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value.device.type if isinstance(value, Tensor) else "cpu"


def cast_to(value: Any, dtype: torch.dtype) -> Any:
    """Tensors as autocast casts them: all floating-point ones but float64; in lists and tuples."""
    if isinstance(value, Tensor):
        wide = value.dtype is torch.float64 or not value.is_floating_point()
        return value if wide else value.to(dtype)
    if isinstance(value, PackedSequence):
        return value._replace(data=cast_to(value.data, dtype))
    if isinstance(value, (tuple, list)):
        return type(value)([cast_to(part, dtype) for part in value])
    return value
