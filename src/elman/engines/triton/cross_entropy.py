"""Decoder and loss of ``elman.engines.cross_entropy`` on a GPU: the vendor's products, and one
kernel between them.

A program reads a row of logits twice: first for the maximum and the sum of exponentials relative to
the running maximum (Milakov & Gimelshein 2018, arXiv:1805.02867v2, algorithm 3, for each place in a
block by itself), then to overwrite the logits with the gradient. Without gradients it reads once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton import knobs

from elman.engines.cross_entropy import (
    Chunk,
    Found,
    Rows,
    Wants,
    accumulated,
    in_chunks,
    verify,
)
from elman.engines.triton.device import limits
from elman.engines.triton.device.launch import fresh, launching
from elman.engines.triton.device.source import function
from elman.errors import DisagreementError, EngineError

_EXACT = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}  # relative RMS error
TEXT = """@triton.jit
def softmax(logits, bias, targets, scale, losses, V, SMOOTHING: tl.constexpr,
            BIASED: tl.constexpr, GRADIENTS: tl.constexpr, BLOCK: tl.constexpr,
            KIND: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * V
    target = tl.load(targets + row)
    hit = tl.load(own + target).to(KIND)
    if BIASED:
        hit += tl.load(bias + target).to(KIND)
    largest = tl.full([BLOCK], -1e30, KIND)
    total = tl.zeros([BLOCK], KIND)
    sums = tl.zeros([BLOCK], KIND)
    for start in range(0, V, BLOCK):
        at = start + tl.arange(0, BLOCK)
        there = at < V
        z = tl.load(own + at, mask=there, other=0.0).to(KIND)
        if BIASED:
            z += tl.load(bias + at, mask=there, other=0.0).to(KIND)
        if SMOOTHING > 0.0:
            sums += z
        z = tl.where(there, z, -float("inf"))
        higher = tl.maximum(largest, z)
        total = total * tl.exp(largest - higher) + tl.exp(z - higher)
        largest = higher
    top = tl.max(largest, 0)
    norm = tl.sum(total * tl.exp(largest - top), 0)
    classes = V.to(KIND)
    loss = tl.log(norm) + (1.0 - SMOOTHING) * (top - hit)
    if SMOOTHING > 0.0:
        loss += SMOOTHING * (top - tl.sum(sums, 0) / classes)
    tl.store(losses + row, loss)
    if GRADIENTS:
        each = tl.load(scale + row).to(KIND)
        factor = each / norm
        even = each * (SMOOTHING / classes)
        for start in range(0, V, BLOCK):
            at = start + tl.arange(0, BLOCK)
            there = at < V
            z = tl.load(own + at, mask=there, other=0.0).to(KIND)
            if BIASED:
                z += tl.load(bias + at, mask=there, other=0.0).to(KIND)
            z = tl.where(there, z, -float("inf"))
            d = factor * tl.exp(z - top) - even
            d -= tl.where(at == target, (1.0 - SMOOTHING) * each, 0.0)
            lib.put(own + at, d, there)
"""


def kind(dtype: torch.dtype) -> Any:
    """Triton's type of sums over logits of a type."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def block(classes: int) -> int:
    """Classes in a program's block."""
    return min(limits.CLASSES, 1 << (classes - 1).bit_length())


def _softmax(chunk: Chunk, gradients: bool) -> tuple[Tensor, Tensor | None]:
    """See :class:`elman.engines.cross_entropy.Softmax`."""
    logits, bias = chunk.logits, chunk.bias
    rows, classes = logits.shape
    losses = fresh(logits, rows, dtype=accumulated(logits.dtype))
    kernel = function("softmax", TEXT)
    kernel[(rows,)](
        logits,
        logits if bias is None else bias.contiguous(),
        chunk.targets.contiguous(),
        chunk.scale.contiguous(),
        losses,
        classes,
        SMOOTHING=float(chunk.smoothing),
        BIASED=bias is not None,
        GRADIENTS=gradients,
        BLOCK=block(classes),
        KIND=kind(logits.dtype),
        num_warps=limits.CLASS_WARPS,
    )
    return losses, logits if gradients else None


def _computed(rows: Rows, scale: Tensor, wants: Wants) -> Found:
    with launching(rows.x):
        return in_chunks(rows, scale, wants, _softmax)


@lru_cache(maxsize=8)
def _verdict(dtype: torch.dtype, device: torch.device) -> EngineError | None:
    """None if the kernel agrees with torch's operations, else the error."""
    try:
        verify("triton", _computed, torch.empty(0, dtype=dtype, device=device), _EXACT[dtype])
    except DisagreementError as error:
        return error
    return None


def losses_and_gradients(rows: Rows, scale: Tensor, wants: Wants) -> Found | None:
    """Losses and gradients, see :func:`elman.engines.cross_entropy.in_torch`; None for types and
    devices without a kernel.

    Raises:
        DisagreementError: the kernel's results differ from torch's.
    """
    device = rows.x.device
    interpreted = device.type == "cpu" and bool(knobs.runtime.interpret)
    if rows.x.dtype not in _EXACT or not (device.type == "cuda" or interpreted):
        return None
    wrong = _verdict(rows.x.dtype, device)
    if wrong is not None:
        raise wrong
    return _computed(rows, scale, wants)
