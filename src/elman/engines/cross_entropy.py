"""Decoder and loss of a chunk of rows at once: the formula of every engine, and its torch ops.

Of a row x[r] with target t[r], logits z = W x[r] + b over V classes, smoothing e and scale s[r]::

    loss[r] = logsumexp(z) - (1 - e) z[t[r]] - e / V · sum(z)
    d z     = s[r] (softmax(z) - (1 - e) onehot(t[r]) - e / V)
    d x[r]  = Wᵀ d z,   d W = Σ_r d z ⊗ x[r],   d b = Σ_r d z

With ``precision="bf16"`` both operands of each product are rounded to bfloat16, and nothing else.
This is torch's cross entropy with ``label_smoothing=e``. The gradients are those of
Σ s[r] loss[r]; they are computed while a chunk's logits are still in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from elman.engines.precision import BF16, IEEE
from elman.errors import DisagreementError

LEAST_ROWS = {"cpu": 256}  # of a chunk: enough that multiplying by W takes longer than reading it
_LEAST_ROWS = 1024  # of a chunk on other devices, which multiply faster
_CACHE_BYTES = 1 << 19  # share of a core's second cache for a chunk
_HALVES = (torch.float16, torch.bfloat16)


class Wants(NamedTuple):
    """Which gradients are computed."""

    x: bool = False
    weight: bool = False
    bias: bool = False


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a decoder.

    Attributes:
        x [N, H]: input, N > 0.
        weight [V, H], bias [V]: of the decoder; no bias: None.
        targets [N]: of 0 … V - 1, int64.
        smoothing: of the labels.
        precision: of products.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    smoothing: float
    precision: str = IEEE


class Found(NamedTuple):
    """Losses and gradients of rows.

    Attributes:
        losses [N]: unscaled, float32 for half precision.
        x [N, H], weight [V, H], bias [V]: gradients that were wanted; others are None.
    """

    losses: Tensor
    x: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


class CrossEntropy(Protocol):
    """``rows, scale [N], wants`` → losses and gradients; None where it cannot compute them."""

    def __call__(self, rows: Rows, scale: Tensor, wants: Wants) -> Found | None: ...


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """Accumulation type of sums over classes and rows."""
    return torch.float32 if dtype in _HALVES else dtype


def chunk_rows(rows: Rows) -> int:
    """Rows per chunk of logits: enough that multiplying by W takes longer than reading it; more
    while x, in two layouts, and the logits fit into a core's cache."""
    row_bytes = (2 * rows.x.shape[1] + len(rows.weight)) * rows.x.itemsize
    most = max(LEAST_ROWS.get(rows.x.device.type, _LEAST_ROWS), _CACHE_BYTES // row_bytes)
    return max(1, min(len(rows.x), most))


class Chunk(NamedTuple):
    """Rows whose logits are in memory.

    Attributes:
        logits [n, V]: without the bias, of the rows' type; may be overwritten.
        bias [V]: or None.
        targets [n], scale [n]: of the rows.
        smoothing: of the labels.
    """

    logits: Tensor
    bias: Tensor | None
    targets: Tensor
    scale: Tensor
    smoothing: float


class Softmax(Protocol):
    """``chunk, gradients`` → losses [n], and gradients by logits [n, V] if they are wanted."""

    def __call__(self, chunk: Chunk, gradients: bool) -> tuple[Tensor, Tensor | None]: ...


def in_torch(rows: Rows, scale: Tensor, wants: Wants) -> Found:
    """Losses and gradients by torch ops, on every device and in every floating-point type."""
    return in_chunks(rows, scale, wants, _softmax)


def in_chunks(rows: Rows, scale: Tensor, wants: Wants, softmax: Softmax) -> Found:
    """Losses and gradients by torch's products, with ``softmax`` between them."""
    x, weight, bias = _rounded(rows.x, rows), _rounded(rows.weight, rows), rows.bias
    wide = accumulated(x.dtype)
    losses = x.new_empty(len(x), dtype=wide)
    d_x = torch.empty_like(x) if wants.x else None
    d_weight = weight.new_empty(weight.shape, dtype=wide) if wants.weight else None
    d_bias = weight.new_zeros(len(weight), dtype=wide) if wants.bias else None
    if d_weight is not None and not len(x):
        d_weight.zero_()
    several = chunk_rows(rows)
    memory = x.new_empty(several, len(weight))
    for start in range(0, len(x), several):
        chunk = slice(start, start + several)
        part = x[chunk]
        logits = torch.mm(part, weight.t(), out=memory[: len(part)])
        losses[chunk], d_logits = softmax(
            Chunk(logits, bias, rows.targets[chunk], scale[chunk], rows.smoothing), any(wants)
        )
        if d_logits is None:
            continue
        if d_bias is not None:
            d_bias += d_logits.sum(0, dtype=wide)
        d_logits = _rounded(d_logits.to(x.dtype), rows)
        if d_x is not None:
            torch.mm(d_logits, weight, out=d_x[chunk])
        if d_weight is not None:
            _add_product(d_weight, d_logits.t(), part, start == 0)
    return Found(losses, d_x, *(_cast((d_weight, d_bias), weight.dtype)))


def _rounded(value: Tensor, rows: Rows) -> Tensor:
    """An operand of a product in the rows' precision."""
    return value.bfloat16().to(value.dtype) if rows.precision == BF16 else value


def _softmax(chunk: Chunk, gradients: bool) -> tuple[Tensor, Tensor | None]:
    """A :class:`Softmax` of torch ops."""
    logits, bias, targets, scale, smoothing = chunk
    logits = (logits if bias is None else logits.add_(bias)).to(accumulated(logits.dtype))
    targets = targets.unsqueeze(1)
    logits -= logits.amax(1, keepdim=True)
    label_loss = (1 - smoothing) * logits.gather(1, targets).squeeze(1)
    if smoothing:
        label_loss += smoothing * logits.mean(1)
    total = logits.exp_().sum(1, keepdim=True)
    losses = total.log().squeeze(1) - label_loss
    return losses, _cotangents(logits, targets, total, scale, smoothing) if gradients else None


def _cotangents(
    powers: Tensor, targets: Tensor, total: Tensor, scale: Tensor, smoothing: float
) -> Tensor:
    """Gradients by logits, in place of their powers [n, V]."""
    scale = scale.unsqueeze(1)
    powers *= scale / total
    if smoothing:
        powers -= scale * (smoothing / powers.shape[1])
    return powers.scatter_add_(1, targets, (smoothing - 1) * scale)


def verify(
    engine: str, compute: CrossEntropy, like: Tensor, most: float, precision: str = IEEE
) -> None:
    """Compare an engine's kernel with torch's operations in float64.

    Args:
        engine: its name, for messages.
        compute: the kernel.
        like: a tensor of the dtype and device of the comparison.
        most: largest relative RMS error that is accepted.
        precision: of products.

    Raises:
        DisagreementError: the results differ.
    """
    source = torch.Generator().manual_seed(0)
    x, weight, bias, scale = (  # sizes that no vector, tile or chunk divides
        torch.randn(shape, generator=source, dtype=torch.float64)
        for shape in ((75, 37), (300, 37), 300, 75)
    )
    targets = torch.randint(300, (75,), generator=source)
    x, weight, bias = (value.to(like) for value in (x, weight / 6, bias))
    scale = scale.to(like.device, accumulated(like.dtype))
    rows = Rows(x, weight, bias, targets.to(like.device), 0.1, precision)
    wide_x, wide_weight, wide_bias, wide_scale = (
        value.double().cpu() for value in (x, weight, bias, scale)
    )
    exact = Rows(wide_x, wide_weight, wide_bias, targets, 0.1, precision)
    wants = Wants(True, True, True)
    expected = in_torch(exact, wide_scale, wants)
    actual = compute(rows, scale, wants)
    if actual is None:
        raise DisagreementError(engine, "LinearCrossEntropyLoss", "it computes nothing")
    for name, value, reference in zip(Found._fields, actual, expected, strict=True):
        assert value is not None
        assert reference is not None
        off = float((value.double().cpu() - reference).norm() / reference.norm())
        if not off <= most:
            message = f"{name} of a decoder's loss is off by {off:.1e}"
            raise DisagreementError(engine, "LinearCrossEntropyLoss", message)


def _add_product(total: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    """total (+)= left @ right; a product of half precision is rounded once before it is added."""
    if total.dtype != left.dtype:
        total.copy_(left @ right) if first else total.add_(left @ right)
    elif first:
        torch.mm(left, right, out=total)
    else:
        total.addmm_(left, right)


def _cast(values: Sequence[Tensor | None], dtype: torch.dtype) -> list[Tensor | None]:
    return [None if value is None else value.to(dtype) for value in values]
