"""What every module takes: tensors with strides, not sparse or nested ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from elman.errors import InputError, diagnostic


def is_dense(value: Tensor) -> bool:
    """Whether a tensor has strides and one size for all of its parts."""
    return value.layout is torch.strided and not value.is_nested


def check_dense(value: Tensor, what: str, of: str = "") -> None:
    """Check one argument of a module.

    Args:
        what, of: its name and whose it is, for the message.

    Raises:
        InputError: it is sparse or nested; with what to give instead.
    """
    if is_dense(value):
        return
    what = f"{what} of {of}" if of else what
    if value.is_nested:
        hint = "torch.nested.to_padded_tensor(x, 0.0), and lengths=[…] of the sequences"
        raise InputError(diagnostic(f"{what} is a nested tensor", [], hint))
    raise InputError(diagnostic(f"{what} is {value.layout}, not dense", [], "give x.to_dense()"))


def as_tensor(value: Any, name: str) -> str:
    """The hint for what is not a tensor: how it becomes one, if numbers are in it."""
    numbers = isinstance(value, list | tuple) or hasattr(value, "__array__")
    return f"torch.as_tensor({name})" if numbers else ""


def row_of(x: Any, rank: int) -> tuple[Tensor, ...]:
    """The inputs of one step, as ``step`` is given them.

    Args:
        x: a tensor, or several.
        rank: dims of a batch of the first; one less unbatched.

    Raises:
        InputError: no tensors, or of another rank.
    """
    several = isinstance(x, (tuple, list))
    values = tuple(x) if several else (x,)
    if not values or not all(isinstance(value, Tensor) for value in values):
        hint = "" if several else as_tensor(x, "x")
        raise InputError(diagnostic("step: x must be a tensor or a tuple of tensors", [], hint))
    for value in values:
        check_dense(value, "step: x")
    if values[0].dim() not in (rank, rank - 1):
        raise InputError(
            f"step: x must have {rank} dimensions (or {rank - 1}, unbatched), got "
            f"{values[0].dim()}: the axis of time is left out"
        )
    return values
