"""Values with another derivative than their own: spikes, straight-through estimates, clipped
gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from elman.checks import shown
from elman.frontend import surrogates
from elman.frontend.lines import describe, refuse
from elman.frontend.trace import Tracer, lift, pointwise
from elman.ir.graph import Rate

__all__ = ["clip_gradient", "spike", "straight_through"]


def spike(
    v: Any, surrogate: str | Callable[..., Any] = "fast_sigmoid", **parameters: Any
) -> Tracer:
    """Exactly 1 where v > 0, else 0 (at 0 and at NaN too), elementwise; what flows back to v is
    multiplied by a surrogate of the derivative, which the backward alone computes.

    With a threshold: ``spike(v - threshold)``.

    Args:
        v: a vector [n] or a scalar per sample.
        surrogate: a name, or a function of v that gives the derivative, written with the functions
            of ``elman.ops``: ``lambda v: 0.3 * relu(1 - abs(v))``. Names, with their parameters
            (:mod:`elman.frontend.surrogates` has formulas and sources):
            ``"fast_sigmoid"``: ``1 / (1 + slope |v|)²``, slope=25;
            ``"atan"``: alpha / 2 / (1 + (π / 2 · alpha · v)²), alpha=2;
            ``"sigmoid"``: slope · σ(slope v) (1 - σ(slope v)), slope=25;
            ``"triangular"``: ``height · max(0, 1 - |v| / width)``, height=1, width=1.
        parameters: of the surrogate.

    Second derivatives are those of the surrogate.

    Raises:
        TraceError: no surrogate has this name or takes such a parameter.

    Example:
        >>> s = spike(h - 1.0, "atan")
    """
    value = Tracer(lift(v))
    slope = surrogate if callable(surrogate) else _named(surrogate, parameters)
    return pointwise("surrogate", value > 0, value, slope(value, **parameters))


def _named(name: Any, parameters: dict[str, Any]) -> Callable[..., Any]:
    """The surrogate of a name."""
    found = surrogates.SURROGATES.get(name) if isinstance(name, str) else None
    if found is None:
        refuse(
            f"spike knows no surrogate {shown(name)}; it knows {', '.join(surrogates.SURROGATES)}",
            "or give the derivative: spike(v, lambda v: 1 / (1 + 25 * abs(v))**2)",
        )
    takes = list(inspect.signature(found).parameters)[1:]
    for parameter in parameters:
        if parameter not in takes:
            refuse(
                f"surrogate {name!r} takes no {parameter!r} (it takes: {', '.join(takes)})",
                f"spike(v, {name!r}, {takes[0]}=2.0)",
            )
    return found


def straight_through(hard: Any, soft: Any) -> Tracer:
    """The value of ``hard``, bit for bit, with the gradient of ``soft``, elementwise.

    Of ``soft`` a step computes what its derivative needs, and in a forward without gradients
    nothing: ``straight_through(round(v), v)``, ``straight_through(v > 0, sigmoid(v))``.
    Source: Bengio, Léonard & Courville 2013, arXiv:1308.3432v1, section 4.

    Example:
        >>> h = straight_through(where(h > 0, 1.0, 0.0), sigmoid(h))
    """
    return pointwise("surrogate", hard, soft, 1.0)


def clip_gradient(v: Any, limit: Any) -> Tracer:
    """v itself; what flows back to it is held within [-limit, limit], unit by unit, NaN kept.

    Inside a recurrence the cotangent is clipped in every step, unlike a clipped gradient of the
    weights. ``limit`` is a number, or a value of the cell, to which nothing flows. Such a backward
    is not linear: derivatives of higher order and transforms run step by step, and what a second
    backward lets flow through the output's own gradient is clipped apart from the rest.
    Source: Graves 2013, arXiv:1308.0850v5, section 2.1 (derivatives by the inputs of the layers are
    clipped).

    Raises:
        TraceError: v depends on weights alone.

    Example:
        >>> h = tanh(W @ x + R @ clip_gradient(h, 1.0))
    """
    value = lift(v)
    if value.rate == Rate.WEIGHT:
        refuse(
            f"{describe(value)} is of weights alone, whose gradient is one sum over all steps",
            "clip it after the backward: torch.nn.utils.clip_grad_value_(net.parameters(), limit)",
        )
    return pointwise("clip_gradient", v, limit)
