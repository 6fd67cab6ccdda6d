"""Precision of float32 products: torch's global switches, and the requests of modules."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from elman.torch_internals import fp32_precision

IEEE, BF16 = "ieee", "bf16"  # torch's names: operands unchanged; operands rounded to bfloat16
_rnn: Any = torch.backends.cudnn.rnn  # ``torch.backends.cudnn.allow_tf32`` sets it too
_everywhere: ContextVar[str] = ContextVar("elman_precision", default="")
_products = torch.backends.cuda.matmul
_products_lock = threading.RLock()  # torch's switch for products is one for the process


def precision() -> str:
    """``tf32``, which is torch's default for recurrent layers, or ``ieee``."""
    if torch.version.hip:
        return "ieee"
    return "tf32" if _rnn.fp32_precision == "tf32" else "ieee"


@contextmanager
def multiplying(tensor: Tensor, precision: str) -> Iterator[None]:
    """Run torch's products of float32 on a GPU in one precision, and restore torch's switch.

    One thread at a time: torch's switch is global, and a second thread would restore the first's.

    Args:
        tensor: a tensor on the device that multiplies; on a CPU nothing is done.
        precision: ``tf32`` or ``ieee``.
    """
    if not tensor.is_cuda:
        yield
        return
    with _products_lock:
        before = _products.fp32_precision
        if (before == "tf32") == (precision == "tf32"):
            yield
            return
        _products.fp32_precision = precision
        try:
            yield
        finally:
            _products.fp32_precision = before


def requested_precision() -> str:
    """The precision, on a CPU, of modules that set none: that of :func:`request_precision`, else of
    ``torch.backends.mkldnn.rnn.fp32_precision``."""
    return _everywhere.get() or (BF16 if fp32_precision("mkldnn", "rnn") == BF16 else IEEE)


@contextmanager
def request_precision(precision: str) -> Iterator[None]:
    """Set the precision of modules that set none, as autocast does."""
    token = _everywhere.set(precision)
    try:
        yield
    finally:
        _everywhere.reset(token)
