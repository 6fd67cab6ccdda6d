"""Types of a call's arguments under autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


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
