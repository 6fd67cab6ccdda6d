"""The precision of a layer's products: the requested one, or the one that is available."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import torch

from elman.engines import registry
from elman.engines.precision import BF16, IEEE, requested_precision
from elman.plan.spec import PlanOptions


def matrix_bytes(shapes: Iterable[Sequence[int]]) -> int:
    """Bytes of the matrices among weights of these shapes in float32."""
    return 4 * sum(prod(shape) for shape in shapes if len(shape) == 2)


def effective_precision(
    options: PlanOptions,
    dtype: torch.dtype,
    device: str,
    engine: str,
    samples: int,
    weights: int,
) -> tuple[str, str | None]:
    """The precision of a layer's products, and why it is not the requested one; None if it is.

    Args:
        options: of the layer.
        dtype, device: type and kind of device of its computation.
        engine: a name, or ``auto``.
        samples, weights: see :meth:`elman.engines.base.Engine.slow_bf16`.
    """
    precision = options.precision or (requested_precision() if device == "cpu" else IEEE)
    lacking = None
    if precision == BF16:
        lacking = lacks_bf16(options, dtype, device, engine, samples, weights)
    return (IEEE if lacking else precision), lacking


def lacks_bf16(
    options: PlanOptions,
    dtype: torch.dtype,
    device: str,
    engine: str,
    samples: int = 0,
    weights: int = 0,
) -> str | None:
    """Why the operands of a layer's products are not rounded to bfloat16, or None if they are; for
    arguments see :func:`effective_precision`."""
    if dtype is not torch.float32:
        return f"the layer computes in {str(dtype).removeprefix('torch.')}"
    if engine == "auto":
        return registry.lacks_bf16(device, options.planned, samples, weights)
    installed = registry.installed(engine)
    if isinstance(installed, str):
        return installed
    return installed.lacks_bf16(options) or installed.slow_bf16(samples, weights)
