"""Ops with a custom gradient as torch autograd functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class Surrogate(Function):
    """``apply(value, of, slope)``, of one shape: the value, and ``slope`` as derivative by ``of``.

    Second derivatives are those of ``slope``.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, of: Tensor, slope: Tensor) -> Tensor:
        """The value."""
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the slope."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[2])
        ctx.save_for_forward(inputs[2])

    @staticmethod
    def backward(ctx: Any, d: Tensor | None) -> Any:  # type: ignore[override]
        """The cotangent of ``of``; None, not 0, if there is none: 0 times an infinite slope is
        NaN."""
        (slope,) = ctx.saved_tensors
        return None, None if d is None else d * slope, None

    @staticmethod
    def jvp(ctx: Any, _: Any, of: Tensor | None, __: Any) -> Any:
        """The tangent of ``of`` times the slope."""
        (slope,) = ctx.saved_tensors
        return torch.zeros_like(slope) if of is None else of * slope


class ClipGradient(Function):
    """``apply(v, limit)``, of one shape: v; its cotangent is clipped to ±limit, NaN kept."""

    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, limit: Tensor) -> Tensor:
        """The value."""
        return v.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the limit."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, d: Tensor | None) -> Any:  # type: ignore[override]
        """The clipped cotangent; None if there is none."""
        (limit,) = ctx.saved_tensors
        return (
            (None, None) if d is None else (torch.clamp(d, -limit.detach(), limit.detach()), None)
        )

    @staticmethod
    def jvp(ctx: Any, v: Tensor, _: Any) -> Tensor:
        """The tangent, unclipped: the backward alone clips."""
        return v.clone()
