"""The precision that a layer's products have: as asked for, or what can be had."""

from __future__ import annotations

import torch

from elman.engines import registry
from elman.engines.precision import BF16, IEEE, requested_precision
from elman.plan.spec import PlanOptions


def effective_precision(
    options: PlanOptions, dtype: torch.dtype, device: str, engine: str
) -> tuple[str, str | None]:
    """The precision of a layer's products, and why it is not the one asked for, if it is not.

    Args:
        options: of the layer.
        dtype, device: in which type and on which kind of device it computes.
        engine: a name, or ``auto``.
    """
    precision = options.precision or (requested_precision() if device == "cpu" else IEEE)
    lacking = lacks_bf16(options, dtype, device, engine) if precision == BF16 else None
    return (IEEE if lacking else precision), lacking


def lacks_bf16(options: PlanOptions, dtype: torch.dtype, device: str, engine: str) -> str | None:
    """Why the operands of a layer's products cannot be rounded to bfloat16, or None if they can;
    arguments as of :func:`effective_precision`."""
    if dtype is not torch.float32:
        return f"the layer computes in {str(dtype).removeprefix('torch.')}"
    if engine == "auto":
        return registry.lacks_bf16(device, options.planned)
    engines = registry.installed(engine)
    return engines if isinstance(engines, str) else engines.lacks_bf16(options)
