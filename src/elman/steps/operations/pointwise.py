"""Elementwise operations, other types of numbers, and gradients that a step states itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from elman.frontend import functions as f
from elman.frontend.activations import hardtanh, leaky_relu
from elman.frontend.spikes import straight_through
from elman.frontend.trace import Tracer, is_number, lift, pointwise, power_of
from elman.steps.arrays.arithmetic import combine
from elman.steps.arrays.array import Array, expand, number, refuse
from elman.steps.operations.table import (
    BY_CONDITION,
    ROWS,
    Facts,
    Row,
    array_of,
    op_named,
    row,
    row_of_facts,
)


def _trunc(v: Any) -> Any:
    return f.where(v < 0, -f.floor(-v), f.floor(v))


def _elu(v: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    below = (scale * alpha) * f.expm1(input_scale * f.minimum(v, 0.0))
    return f.where(v > 0, scale * v, below)


def _gelu(v: Any, approximate: str = "none") -> Any:
    if approximate == "none":
        return f.gelu(v)
    inner = math.sqrt(2.0 / math.pi) * (v + 0.044715 * v * v * v)
    return 0.5 * v * (1.0 + f.tanh(inner))


def _softplus(v: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    if threshold == 20.0:
        return f.softplus(v) if beta == 1.0 else f.softplus(beta * v) / beta
    scaled = beta * v
    return f.where(scaled > threshold, v, f.softplus(f.minimum(scaled, threshold)) / beta)


def _log1p(v: Any) -> Any:
    """log(1 + v) without cancellation: what 1 + v rounds away of v is in the quotient (Goldberg
    1991, theorem 4)."""
    above = f.stop_gradient(1.0 + v)
    off = above - 1.0
    lost = pointwise("eq", off, 0.0)
    exact = f.where(lost, v, f.log(above) * (v / f.where(lost, 1.0, off)))
    whole = pointwise("eq", above, math.inf)
    return straight_through(f.where(whole, above, exact), f.log(1.0 + v))


def _clip(v: Any, low: Any = None, high: Any = None) -> Any:
    low = -math.inf if low is None else low
    high = math.inf if high is None else high
    return f.clip(v, low, high)


def not_zero(v: Any) -> Any:
    """1 where a value is not 0, else 0."""
    return pointwise("ne", v, 0.0)


def _logical(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: function(*map(not_zero, values))


def _fmod(a: Any, b: Any) -> Any:
    return a - b * f.stop_gradient(_trunc(pointwise("div", a, b)))


def _scaled(op: str) -> Callable[..., Any]:
    """A sum or difference of which the second value is multiplied with alpha."""
    return lambda a, b, alpha=1: pointwise(op, a, b if alpha == 1 else pointwise("mul", alpha, b))


def _div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    quotient = pointwise("div", a, b)
    if rounding_mode is None:
        return quotient
    return f.floor(quotient) if rounding_mode == "floor" else _trunc(quotient)


# What torch and elman call alike: operations of a formula, and functions of its authors.
_OPS = ("mul", "neg", "sign", "lt", "le", "gt", "ge", "eq", "ne")
_FUNCTIONS = (
    *("abs", "exp", "expm1", "log", "sqrt", "sin", "cos", "atan", "asinh", "tanh", "sigmoid"),
    *("relu", "silu", "erf", "floor", "minimum", "maximum", "where", "remainder"),
)
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{name: op_named(name) for name in _OPS},
    **{name: getattr(f, name) for name in _FUNCTIONS},
    "sub": _scaled("sub"),
    "rsub": lambda a, b, alpha=1: _scaled("sub")(b, a, alpha),
    "div": _div,
    "pow": power_of,
    "exp2": lambda v: f.exp(math.log(2.0) * v),
    "log1p": _log1p,
    "log2": lambda v: f.log(v) / math.log(2.0),
    "log10": lambda v: f.log(v) / math.log(10.0),
    "rsqrt": lambda v: 1.0 / f.sqrt(v),
    "reciprocal": lambda v: 1.0 / v,
    "tan": lambda v: f.sin(v) / f.cos(v),
    "sinh": lambda v: 0.5 * (f.expm1(v) - f.expm1(-v)),
    "cosh": lambda v: 0.5 * (f.exp(v) + f.exp(-v)),
    "erfc": lambda v: 1.0 - f.erf(v),
    "ceil": lambda v: -f.floor(-v),
    "round": lambda v, decimals=0: (
        f.round(v * 10.0**decimals) / 10.0**decimals if decimals else f.round(v)
    ),
    "trunc": _trunc,
    "frac": lambda v: v - f.stop_gradient(_trunc(v)),
    "gelu": _gelu,
    "elu": _elu,
    "leaky_relu": leaky_relu,
    "hardtanh": hardtanh,
    "hardsigmoid": lambda v: hardtanh(v + 3.0, 0.0, 6.0) / 6.0,
    "hardswish": lambda v: f.where(v <= -3.0, 0.0 * v, f.where(v < 3.0, v * (v + 3.0) / 6.0, v)),
    "softplus": _softplus,
    "fmin": lambda a, b: f.where(pointwise("eq", a, a), f.minimum(a, b), b),
    "fmax": lambda a, b: f.where(pointwise("eq", a, a), f.maximum(a, b), b),
    "clamp": _clip,
    "clamp_min": _clip,
    "clamp_max": lambda v, high: _clip(v, None, high),
    "masked_fill": lambda v, mask, value: f.where(mask, value, v),
    "lerp": lambda a, b, w: a + w * (b - a),
    "addcmul": lambda a, b, c, value=1: a + value * (b * c),
    "addcdiv": lambda a, b, c, value=1: a + value * (b / c),
    "fmod": _fmod,
    "nan_to_num": lambda v, nan=0.0, *_: f.where(pointwise("eq", v, v), v, nan),
    "xlogy": lambda a, b: f.where(pointwise("eq", a, 0.0), 0.0 * b, a * f.log(b)),
    "hypot": lambda a, b: f.sqrt(a * a + b * b),
    "isnan": lambda v: pointwise("ne", v, v),
    "isinf": lambda v: pointwise("eq", f.abs(v), math.inf),
    "isfinite": lambda v: pointwise("lt", f.abs(v), math.inf),
    "logical_not": lambda v: pointwise("eq", v, 0.0),
    "logical_and": _logical(op_named("mul")),
    "logical_or": _logical(f.maximum),
    "logical_xor": _logical(op_named("ne")),
    "heaviside": lambda v, at: f.where(v > 0, 1.0, f.where(pointwise("eq", v, 0.0), at, 0.0)),
    "detach": f.stop_gradient,
}


def _elementwise(function: Callable[..., Any]) -> Row:
    """The row of an elementwise function: of the arrays among its arguments, wherever they are."""

    def apply(facts: Facts, *args: Any, **kwargs: Any) -> Array:
        flat = [*args, *kwargs.values()]
        places = [at for at, value in enumerate(flat) if isinstance(value, Array)]

        def of_values(*values: Any) -> Any:
            given = [*flat]
            for at, value in zip(places, values):
                given[at] = Tracer(lift(value)) if is_number(value) else value
            return function(*given[: len(args)], **dict(zip(kwargs, given[len(args) :])))

        return combine(of_values, *[flat[at] for at in places])

    return apply


def _of_bools(function: Callable[..., Any], otherwise: Callable[..., Any] | None = None) -> Row:
    """The row of a function of bools; of numbers it is another one, or none."""
    of_bools = _elementwise(function)
    of_numbers = None if otherwise is None else _elementwise(otherwise)

    def apply(facts: Facts, *args: Any, **kwargs: Any) -> Array:
        if facts.dtype == torch.bool:
            return of_bools(facts, *args)
        if of_numbers is None:
            raise refuse("bits of whole numbers")
        return of_numbers(facts, *args, **kwargs)

    return apply


ELEMENTWISE = frozenset({*_ELEMENTWISE, "add"})  # names of operations
ROWS.update({name: _elementwise(function) for name, function in _ELEMENTWISE.items()})
ROWS["add"] = _of_bools(f.maximum, _scaled("add"))
ROWS["bitwise_not"] = _of_bools(lambda v: pointwise("sub", 1.0, v))
for _names, _function in (("and", op_named("mul")), ("or", f.maximum), ("xor", op_named("ne"))):
    ROWS[f"bitwise_{_names}"] = ROWS[f"__{_names}__"] = _of_bools(_function)


@row("log_sigmoid_forward")
def _log_sigmoid(a: Array) -> tuple[Array, Array]:
    return combine(lambda v: -f.softplus(-v), a), number(0.0)


@row_of_facts("index_put")
def _index_put(facts: Facts, a: Array, indices: Any, new: Any, accumulate: bool = False) -> Array:
    """a[mask] = number."""
    (mask, *further), (_, *kinds) = indices, facts.dtypes
    is_mask = isinstance(mask, Array) and mask.shape == a.shape and kinds[0] == torch.bool
    is_number = not isinstance(new, Array) or math.prod(new.shape) == 1
    if further or accumulate or not (is_mask and is_number):
        raise refuse("it writes to places", BY_CONDITION)
    return combine(lambda v, m, n: f.where(m, n, v), a, mask, new)


def _as_type(a: Array, before: torch.dtype, after: torch.dtype) -> Array:
    """Numbers of another type: bools are 1 and 0, whole numbers are rounded towards 0."""
    if after == torch.bool and before != torch.bool:
        return combine(not_zero, a)
    if before.is_floating_point and not (after.is_floating_point or after.is_complex):
        return combine(_trunc, a)
    is_half = after in (torch.float16, torch.bfloat16) and before.is_floating_point
    if after != before and (after.is_complex or is_half):
        raise refuse(f"numbers become {after}")
    return a


@row_of_facts("_to_copy")
def _cast(facts: Facts, a: Array, **_: Any) -> Array:
    return _as_type(a, facts.dtypes[0], facts.dtype)


@row_of_facts("copy")
def _copy(facts: Facts, a: Array, b: Any, *_: Any) -> Array:
    source = array_of(b)
    if len(facts.dtypes) > 1:
        source = _as_type(source, facts.dtypes[1], facts.dtype)
    return expand(source, facts.shape, facts.batch)


def own_gradient(value: Array, inputs: Sequence[Array], slopes: Sequence[Array]) -> Array:
    """The value with the gradient of Σ slope · input, elementwise."""

    def apply(hard: Any, *rest: Any) -> Any:
        count = len(rest) // 2
        soft: Any = 0.0
        for v, slope in zip(rest[:count], rest[count:], strict=True):
            if is_number(v):
                continue
            term = pointwise("mul", f.stop_gradient(slope), v)
            soft = term if is_number(soft) else soft + term
        if is_number(soft):
            return f.stop_gradient(hard)
        return straight_through(hard, soft)

    return combine(apply, value, *inputs, *slopes)


def stop(v: Any) -> Any:
    """Without a gradient."""
    return v if is_number(v) else f.stop_gradient(v)
