"""Custom gradients: spikes, straight-through estimators, clipped gradients.

Surrogates of a spike's derivative go by the names that snnTorch, Norse and SpikingJelly use. Each
takes v, which is what is compared with 0, and gives the derivative. Formulas as of snnTorch
0.9 and 1.0 (``snntorch.surrogate``), Norse 1.1 (``norse.torch.functional.threshold``,
``superspike``) and SpikingJelly 2.0 (``spikingjelly.activation_based.surrogate``).

Norse's methods read its parameter alpha in four ways: ``super`` ignores it (``"fast_sigmoid"`` of
slope 1); it is the height of ``triangle``; ``tanh`` and ``heavi_erfc`` have 1 - tanh(alpha v)² and
2 exp(-(alpha v)²) / √π, of one height for every alpha; ``circ`` is alpha³ / (v² + alpha²)^1.5.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from math import pi
from types import MappingProxyType
from typing import Any

from elman.checks import shown
from elman.frontend import functions as f
from elman.frontend.lines import describe, refuse
from elman.frontend.trace import Tracer, is_number, lift, pointwise
from elman.ir.graph import Rate


def fast_sigmoid(v: Any, slope: Any = 25.0) -> Any:
    """1 / (1 + slope |v|)²: snnTorch's ``fast_sigmoid``, Norse's ``super`` (slope 1 there, whatever
    its alpha is), SpikingJelly's ``SuperSpike`` of alpha 1 (slope 1).

    Source: Zenke & Ganguli 2018, arXiv:1705.11146v2, section 2.3.
    """
    return 1.0 / (1.0 + slope * f.abs(v)) ** 2


def atan(v: Any, alpha: Any = 2.0) -> Any:
    """alpha / 2 / (1 + (π / 2 · alpha · v)²): ``atan`` of snnTorch, ``ATan`` of SpikingJelly.

    Source: Fang et al. 2021, arXiv:2007.05785v5.
    """
    return 0.5 * alpha / (1.0 + (0.5 * pi * alpha * v) ** 2)


def sigmoid(v: Any, slope: Any = 25.0) -> Any:
    """slope · σ(slope v) (1 - σ(slope v)): ``sigmoid`` of snnTorch, ``Sigmoid`` of SpikingJelly
    (slope 4 there, called alpha)."""
    s = f.sigmoid(slope * v)
    return slope * s * (1.0 - s)


def triangular(v: Any, height: Any = 1.0, width: Any = 1.0) -> Any:
    """height · max(0, 1 - |v| / width): Norse's ``triangle`` of α (height α, width 1),
    SpikingJelly's ``PiecewiseQuadratic`` of α (height α, width 1 / α).

    Bellec et al. 2018 (arXiv:1803.09574v4) take height 0.3 of a v in units of the threshold.
    snnTorch's ``triangular`` is something else.
    """
    return height * f.relu(1.0 - f.abs(v) / width)


SURROGATES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {surrogate.__name__: surrogate for surrogate in (fast_sigmoid, atan, sigmoid, triangular)}
)


__all__ = ["clip_gradient", "spike", "straight_through"]


def spike(
    v: Any, surrogate: str | Callable[..., Any] = "fast_sigmoid", **parameters: Any
) -> Tracer:
    """Exactly 1 where v > 0, else 0 (also at 0 and NaN), elementwise. The gradient of v uses a
    surrogate of the derivative, which only the backward computes.

    For a threshold, write ``spike(v - threshold)``.

    Args:
        v: a vector [n] or a scalar per sample.
        surrogate: a name, or a function of v that gives the derivative, written with the functions
            of ``elman.ops``: ``lambda v: 0.3 * relu(1 - abs(v))``. Names, with their parameters
            which a name may state, as in ``"sigmoid(slope=4)"`` (:mod:`elman.frontend.spikes` has
            formulas and sources):
            ``"fast_sigmoid"``: ``1 / (1 + slope |v|)²``, slope=25;
            ``"atan"``: alpha / 2 / (1 + (π / 2 · alpha · v)²), alpha=2;
            ``"sigmoid"``: slope · σ(slope v) (1 - σ(slope v)), slope=25;
            ``"triangular"``: ``height · max(0, 1 - |v| / width)``, height=1, width=1.
        parameters: of the surrogate, positive.

    Second derivatives are those of the surrogate.

    Raises:
        TraceError: no surrogate has this name or takes such a parameter, a parameter is not
            positive, or the text cannot be read.

    Example:
        >>> s = spike(h - 1.0, "atan")
    """
    value = Tracer(lift(v))
    if isinstance(surrogate, str):
        surrogate, parameters = _read(surrogate, parameters)
    slope = surrogate if callable(surrogate) else _find_named(surrogate, parameters)
    return pointwise("surrogate", value > 0, value, slope(value, **parameters))


def _read(text: str, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and parameters of ``"sigmoid(slope=4)"``: the options of a cell are one value each."""
    name, bracket, rest = text.partition("(")
    if not bracket:
        return name, parameters
    try:
        pairs = [part.split("=") for part in rest.removesuffix(")").split(",")]
        stated = {key.strip(): float(value) for key, value in pairs}
    except ValueError:
        stated = {}
    if not stated or parameters or not rest.endswith(")"):
        problem = "has parameters twice" if parameters else "cannot be read"
        refuse(f"surrogate {shown(text)} {problem}", 'state each by name, once: "sigmoid(slope=4)"')
    return name, stated


def _find_named(name: Any, parameters: dict[str, Any]) -> Callable[..., Any]:
    """The surrogate of a name."""
    surrogate = SURROGATES.get(name) if isinstance(name, str) else None
    if surrogate is None:
        refuse(
            f"spike knows no surrogate {shown(name)}; it knows {', '.join(SURROGATES)}",
            "or give the derivative: spike(v, lambda v: 1 / (1 + 25 * abs(v))**2)",
        )
    takes = list(inspect.signature(surrogate).parameters)[1:]
    for parameter, value in parameters.items():
        if is_number(value) and not 0.0 < value < math.inf:
            refuse(
                f"{parameter} of surrogate {name!r} must be a positive number, not {value!r}",
                f"spike(v, {name!r}, {parameter}=2.0)",
            )
        if parameter not in takes:
            refuse(
                f"surrogate {name!r} takes no {parameter!r} (it takes: {', '.join(takes)})",
                f"spike(v, {name!r}, {takes[0]}=2.0)",
            )
    return surrogate


def straight_through(hard: Any, soft: Any) -> Tracer:
    """The value of ``hard``, bit for bit, with the gradient of ``soft``, elementwise.

    Examples: ``straight_through(round(v), v)``, ``straight_through(v > 0, sigmoid(v))``. A step
    computes only those parts of ``soft`` that its derivative needs, and none without gradients.
    Source: Bengio, Léonard & Courville 2013, arXiv:1308.3432v1, section 4.

    Example:
        >>> h = straight_through(where(h > 0, 1.0, 0.0), sigmoid(h))
    """
    return pointwise("surrogate", hard, soft, 1.0)


def clip_gradient(v: Any, limit: Any) -> Tracer:
    """v itself, with its gradient clipped elementwise to [-limit, limit]; NaN is kept.

    Inside a recurrence the cotangent is clipped in every step, unlike a clipped gradient of the
    weights. ``limit`` is a number, or a value of the cell, which gets no gradient. The backward is
    not linear, so higher derivatives and transforms run step by step. A second backward clips the
    gradient through the output's own gradient separately.
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
