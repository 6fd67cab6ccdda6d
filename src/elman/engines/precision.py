"""How float32 is multiplied on a GPU: as torch's switch for recurrent layers says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_rnn: Any = torch.backends.cudnn.rnn  # ``torch.backends.cudnn.allow_tf32`` sets it too
_products = torch.backends.cuda.matmul


def precision() -> str:
    """``tf32``, which is torch's default for recurrent layers, or ``ieee``."""
    if torch.version.hip:
        return "ieee"
    return "tf32" if _rnn.fp32_precision == "tf32" else "ieee"


@contextmanager
def multiplying(tensor: Tensor, how: str) -> Iterator[None]:
    """Inside, torch's products of float32 on a GPU are ``tf32`` or ``ieee``; its switch for them is
    as it was afterwards."""
    before = _products.fp32_precision
    if not tensor.is_cuda or (before == "tf32") == (how == "tf32"):
        yield
        return
    _products.fp32_precision = how
    try:
        yield
    finally:
        _products.fp32_precision = before
