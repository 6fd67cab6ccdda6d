"""Activations that are made of other functions: torch's values, and torch's gradients."""

from __future__ import annotations

from typing import Any

from elman.frontend.functions import exp, expm1, maximum, minimum, stop_gradient, where
from elman.frontend.trace import Tracer, pointwise

__all__ = ["elu", "hardsigmoid", "hardtanh", "leaky_relu"]


def leaky_relu(v: Any, slope: Any = 0.01) -> Tracer:
    """v where it is positive, else slope · v, elementwise.

    The slope may be a weight [n] or a scalar: a parametric ReLU (He et al. 2015,
    arXiv:1502.01852v1, eq. 1). The derivative at 0 is the slope, as in torch.

    Example:
        >>> h = leaky_relu(W @ x + R @ h, 0.1)
    """
    return where(pointwise("gt", v, 0.0), v, pointwise("mul", slope, v))


def elu(v: Any, alpha: Any = 1.0) -> Tracer:
    """v where it is positive, else alpha · (exp(v) - 1), elementwise.

    Source: Clevert, Unterthiner & Hochreiter 2016, arXiv:1511.07289v5, eq. 15. The derivative at 0
    is alpha, as in torch. At NaN it is NaN; in torch it is NaN or 1, depending on the position in
    memory.

    Example:
        >>> h = elu(W @ x + R @ h)
    """
    above = pointwise("gt", v, 0.0)
    low = where(above, 0.0, v)
    # the slope exp(low), which expm1(low) + 1 has lost below -36
    below = pointwise("surrogate", expm1(low), low, exp(low))
    return where(above, v, pointwise("mul", alpha, below))


def hardtanh(v: Any, low: float = -1.0, high: float = 1.0) -> Tracer:
    """v clipped to [low, high], two numbers, elementwise; the derivative at them is 0, as in torch
    (``clip`` has 1 there, as torch.clamp). At NaN it is 0; in torch it is 0 or 1, depending on the
    unit's position in memory.

    Example:
        >>> h = hardtanh(W @ x + R @ h)
    """
    inside = pointwise("mul", pointwise("gt", v, low), pointwise("lt", v, high))
    return where(inside, v, stop_gradient(minimum(maximum(v, low), high)))


def hardsigmoid(v: Any) -> Tracer:
    """(v + 3) / 6 clipped to [0, 1], elementwise; the gradient is 0 at the bounds, as in torch.

    Example:
        >>> z = hardsigmoid(W @ x + R @ h + b)
    """
    inside = pointwise("mul", pointwise("gt", v, -3.0), pointwise("lt", v, 3.0))
    line = pointwise("add", v, 3.0) / 6.0
    return where(inside, line, stop_gradient(minimum(maximum(line, 0.0), 1.0)))
