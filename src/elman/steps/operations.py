"""torch's operations (ATen) as operations of arrays: one row each.

A row is found by the operation's name, with its overload or without. It is called with arrays in
place of tensors, and with what else the operation was given. torch's rules of promotion are in the
types of the tape; a formula computes in floating-point numbers, bools are 1 and 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from elman.frontend import draws as random
from elman.frontend import functions as f
from elman.frontend import reductions
from elman.frontend.draws import repeat_number
from elman.frontend.heads import cut_dim
from elman.frontend.lines import where_called
from elman.frontend.spikes import straight_through
from elman.frontend.trace import Tracer, lift, pointwise, power_of
from elman.ir.graph import node
from elman.steps import arrays as arr
from elman.steps.arrays import Array, combine, refuse

Row = Callable[..., Any]
ROWS: dict[str, Row] = {}


@dataclass(frozen=True)
class Facts:
    """What the tape knows of an operation.

    Attributes:
        shape: of its (first) result, with the axis of samples as its rows per sample.
        batch: which axis that is.
        dtype: of its (first) result.
        dtypes: of the tensors it is given.
    """

    shape: tuple[int, ...]
    batch: int | None
    dtype: torch.dtype
    dtypes: tuple[torch.dtype, ...]


def find(name: str) -> Row | None:
    """The row of an operation."""
    return ROWS.get(name) or ROWS.get(name.partition(".")[0])


def _row(*names: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        for name in names:
            ROWS[name] = function
        return function

    return add


def _array(value: Any) -> Array:
    if isinstance(value, Array):
        return value
    return arr.number(float(value))


# ---- elementwise


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


def _log_sigmoid(v: Any) -> Any:
    return -f.softplus(-v)


def _clip(v: Any, low: Any = None, high: Any = None) -> Any:
    low = -math.inf if low is None else low
    high = math.inf if high is None else high
    return f.clip(v, low, high)


def _sign(v: Any) -> Any:
    return pointwise("sign", v)


def _step_between(v: Any, low: float, high: float) -> Any:
    """relu6-like: v within two bounds; the gradient is 0 at them and outside."""
    inside = pointwise("mul", v > low, v < high)
    return f.where(inside, v, f.stop_gradient(f.minimum(f.maximum(v, low), high)))


def _leaky(v: Any, slope: float = 0.01) -> Any:
    return f.where(v > 0, v, slope * v)


def _softshrink(v: Any, width: float = 0.5) -> Any:
    return f.where(v > width, v - width, f.where(v < -width, v + width, 0.0 * v))


def _hardshrink(v: Any, width: float = 0.5) -> Any:
    inside = pointwise("mul", v >= -width, v <= width)
    return f.where(inside, 0.0 * v, v)


def _hard_sigmoid(v: Any) -> Any:
    return _step_between(v + 3.0, 0.0, 6.0) / 6.0


def _hard_swish(v: Any) -> Any:
    return f.where(v <= -3.0, 0.0 * v, f.where(v < 3.0, v * (v + 3.0) / 6.0, v))


def _logical(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*values: Any) -> Any:
        return function(*[pointwise("ne", value, 0.0) for value in values])

    return apply


def _floor_of(a: Any, b: Any) -> Any:
    return f.floor(pointwise("div", a, b))


def _fmod(a: Any, b: Any) -> Any:
    return a - b * f.stop_gradient(_trunc(pointwise("div", a, b)))


def _nan_to_num(v: Any, nan: float = 0.0, *_: Any) -> Any:
    return f.where(pointwise("eq", v, v), v, nan)


def _add(a: Any, b: Any, alpha: float = 1) -> Any:
    return pointwise("add", a, b if alpha == 1 else pointwise("mul", alpha, b))


def _sub(a: Any, b: Any, alpha: float = 1) -> Any:
    return pointwise("sub", a, b if alpha == 1 else pointwise("mul", alpha, b))


def _div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    quotient = pointwise("div", a, b)
    if rounding_mode is None:
        return quotient
    return f.floor(quotient) if rounding_mode == "floor" else _trunc(quotient)


def _op(name: str) -> Callable[..., Any]:
    return lambda *values: pointwise(name, *values)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "sub": _sub,
    "div": _div,
    "true_divide": _div,
    "pow": power_of,
    "rsub": lambda a, b, alpha=1: _sub(b, a, alpha),
    "mul": _op("mul"),
    "neg": _op("neg"),
    "abs": f.abs,
    "sign": _sign,
    "sgn": _sign,
    "exp": f.exp,
    "exp2": lambda v: f.exp(math.log(2.0) * v),
    "expm1": f.expm1,
    "log": f.log,
    "log1p": _log1p,
    "log2": lambda v: f.log(v) / math.log(2.0),
    "log10": lambda v: f.log(v) / math.log(10.0),
    "sqrt": f.sqrt,
    "rsqrt": lambda v: 1.0 / f.sqrt(v),
    "reciprocal": lambda v: 1.0 / v,
    "square": lambda v: v * v,
    "sin": f.sin,
    "cos": f.cos,
    "tan": lambda v: f.sin(v) / f.cos(v),
    "atan": f.atan,
    "asinh": f.asinh,
    "tanh": f.tanh,
    "sinh": lambda v: 0.5 * (f.expm1(v) - f.expm1(-v)),
    "cosh": lambda v: 0.5 * (f.exp(v) + f.exp(-v)),
    "sigmoid": f.sigmoid,
    "relu": f.relu,
    "erf": f.erf,
    "erfc": lambda v: 1.0 - f.erf(v),
    "floor": f.floor,
    "ceil": lambda v: -f.floor(-v),
    "round": lambda v, decimals=0: (
        f.round(v * 10.0**decimals) / 10.0**decimals if decimals else f.round(v)
    ),
    "trunc": _trunc,
    "fix": _trunc,
    "frac": lambda v: v - f.stop_gradient(_trunc(v)),
    "silu": f.silu,
    "gelu": _gelu,
    "elu": _elu,
    "celu": lambda v, alpha=1.0: _elu(v, alpha, 1.0, 1.0 / alpha),
    "leaky_relu": _leaky,
    "hardtanh": lambda v, low=-1.0, high=1.0: _step_between(v, low, high),
    "hardsigmoid": _hard_sigmoid,
    "hardswish": _hard_swish,
    "softplus": _softplus,
    "mish": lambda v: v * f.tanh(f.softplus(v)),
    "softshrink": _softshrink,
    "hardshrink": _hardshrink,
    "threshold": lambda v, bound, value: f.where(v > bound, v, value),
    "minimum": f.minimum,
    "maximum": f.maximum,
    "fmin": lambda a, b: f.where(pointwise("eq", a, a), f.minimum(a, b), b),
    "fmax": lambda a, b: f.where(pointwise("eq", a, a), f.maximum(a, b), b),
    "clamp": _clip,
    "clamp_min": lambda v, low: _clip(v, low),
    "clamp_max": lambda v, high: _clip(v, None, high),
    "where": f.where,
    "masked_fill": lambda v, mask, value: f.where(mask, value, v),
    "lerp": lambda a, b, w: a + w * (b - a),
    "addcmul": lambda a, b, c, value=1: a + value * (b * c),
    "addcdiv": lambda a, b, c, value=1: a + value * (b / c),
    "remainder": f.remainder,
    "fmod": _fmod,
    "floor_divide": _floor_of,
    "nan_to_num": _nan_to_num,
    "xlogy": lambda a, b: f.where(pointwise("eq", a, 0.0), 0.0 * b, a * f.log(b)),
    "hypot": lambda a, b: f.sqrt(a * a + b * b),
    "isnan": lambda v: pointwise("ne", v, v),
    "isinf": lambda v: pointwise("eq", f.abs(v), math.inf),
    "isfinite": lambda v: pointwise("lt", f.abs(v), math.inf),
    "lt": _op("lt"),
    "le": _op("le"),
    "gt": _op("gt"),
    "ge": _op("ge"),
    "eq": _op("eq"),
    "ne": _op("ne"),
    "logical_not": lambda v: pointwise("eq", v, 0.0),
    "logical_and": _logical(_op("mul")),
    "logical_or": _logical(f.maximum),
    "logical_xor": _logical(_op("ne")),
    "heaviside": lambda v, at: f.where(v > 0, 1.0, f.where(pointwise("eq", v, 0.0), at, 0.0)),
    "detach": f.stop_gradient,
    "sigmoid_backward": lambda g, y: g * y * (1.0 - y),
    "tanh_backward": lambda g, y: g * (1.0 - y * y),
    "threshold_backward": lambda g, v, bound: f.where(v > bound, g, 0.0),
}


def _elementwise(function: Callable[..., Any]) -> Row:
    """The row of an elementwise function: of the arrays among its arguments, wherever they are."""

    def apply(facts: Facts, *args: Any, **kwargs: Any) -> Array:
        flat = [*args, *kwargs.values()]
        places = [at for at, value in enumerate(flat) if isinstance(value, Array)]

        def of_values(*values: Any) -> Any:
            given = [*flat]
            for at, value in zip(places, values):
                given[at] = Tracer(lift(value)) if _is_plain(value) else value
            return function(*given[: len(args)], **dict(zip(kwargs, given[len(args) :])))

        return combine(of_values, *[flat[at] for at in places])

    return apply


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, Tracer)


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


ROWS.update({name: _elementwise(function) for name, function in _ELEMENTWISE.items()})
ROWS["add"] = _of_bools(f.maximum, _add)
ROWS["bitwise_not"] = _of_bools(lambda v: pointwise("sub", 1.0, v))
for _names, _function in (("and", _op("mul")), ("or", f.maximum), ("xor", _op("ne"))):
    ROWS[f"bitwise_{_names}"] = ROWS[f"__{_names}__"] = _of_bools(_function)


@_row("log_sigmoid_forward")
def _log_sigmoid_row(facts: Facts, a: Array) -> tuple[Array, Array]:
    return combine(_log_sigmoid, a), arr.number(0.0)


@_row("_to_copy", "to")
def _cast(facts: Facts, a: Array, **_: Any) -> Array:
    before, after = facts.dtypes[0], facts.dtype
    if after == torch.bool and before != torch.bool:
        return combine(lambda v: pointwise("ne", v, 0.0), a)
    if before.is_floating_point and not after.is_floating_point:
        return combine(_trunc, a)
    if after.is_complex or (after in (torch.float16, torch.bfloat16) and after != before):
        if before.is_floating_point or after.is_complex:
            raise refuse(f"numbers become {after}")
    return a


@_row("alias", "clone", "contiguous", "lift_fresh", "lift_fresh_copy", "view_as", "dropout_none")
def _same(facts: Facts, a: Array, **_: Any) -> Array:
    return a


@_row("copy")
def _copy(facts: Facts, a: Array, b: Any, *_: Any) -> Array:
    source = _array(b)
    shape = facts.shape
    return arr.expand(_row_type(facts, source), shape, facts.batch)


def _row_type(facts: Facts, source: Array) -> Array:
    after = facts.dtype
    if len(facts.dtypes) > 1 and after == torch.bool and facts.dtypes[1] != torch.bool:
        return combine(lambda v: pointwise("ne", v, 0.0), source)
    if len(facts.dtypes) > 1 and facts.dtypes[1].is_floating_point and not after.is_floating_point:
        return combine(_trunc, source)
    return source


# ---- made of numbers


def _filled(number: float | None) -> Row:
    """The row of a tensor of one number; None: the one that is given."""

    def apply(facts: Facts, *args: Any, **_: Any) -> Array:
        value = args[1] if number is None else number
        if isinstance(value, Array):
            return arr.expand(value, facts.shape, facts.batch)
        return arr.number(float(value), facts.shape, facts.batch)

    return apply


for _name, _number in (("zeros", 0.0), ("ones", 1.0), ("full", None), ("empty", math.nan)):
    for _form in (_name, f"{_name}_like", f"new_{_name}"):
        ROWS[_form] = _filled(_number)
ROWS.update({"fill": _filled(None), "zero": _filled(0.0), "empty_strided": _filled(math.nan)})


@_row("scalar_tensor")
def _scalar(facts: Facts, value: Any, **_: Any) -> Array:
    return arr.number(float(value))


# ---- random numbers: of this module's own streams


_fixed: ContextVar[float | None] = ContextVar("elman_fixed_draws", default=None)


@contextmanager
def fixed_draws(number: float) -> Iterator[None]:
    """Inside, a number stands in place of all random ones."""
    token = _fixed.set(number)
    try:
        yield
    finally:
        _fixed.reset(token)


def _drawn(facts: Facts, draw: Callable[[Any], Tracer]) -> Array:
    count, fixed = prod(facts.shape), _fixed.get()
    if fixed is not None:
        return arr.number(fixed, facts.shape, facts.batch)
    if facts.batch is None:
        raise refuse("random numbers that all samples share")
    like = repeat_number(0.0, (cut_dim((count,)),)) if count > 1 else Tracer(lift(0.0))
    base = facts.shape if count > 1 else (1,) * len(facts.shape)
    return Array(draw(like), base, facts.shape, facts.batch)


def _of_draws(draw: Callable[[Any], Tracer], function: Callable[..., Any]) -> Row:
    """The row of a function of random numbers and of what the operation is given beside the
    tensor."""

    def apply(facts: Facts, *args: Any, **kwargs: Any) -> Array:
        numbers = [v for v in args[1:] if v is not None]
        return combine(lambda u: function(u, *numbers, **kwargs), _drawn(facts, draw))

    return apply


_DRAWS: dict[str, tuple[Callable[[Any], Tracer], Callable[..., Any]]] = {
    "uniform": (random.draw_uniform, lambda u, low=0.0, high=1.0: low + (high - low) * u),
    "normal": (random.draw_normal, lambda n, mean=0.0, std=1.0: mean + std * n),
    "exponential": (random.draw_uniform, lambda u, rate=1.0: -f.log(1.0 - u) / rate),
    "bernoulli.float": (random.draw_uniform, lambda u, p=0.5: pointwise("lt", u, p)),
}
ROWS.update({name: _of_draws(*row) for name, row in _DRAWS.items()})
for _name, _draw in (("rand", random.draw_uniform), ("randn", random.draw_normal)):
    ROWS[_name] = ROWS[f"{_name}_like"] = lambda facts, *_, draw=_draw, **__: _drawn(facts, draw)


@_row("normal.Tensor_float", "normal.Tensor_Tensor", "normal.float_Tensor")
def _normal_of(facts: Facts, mean: Any, std: Any = 1.0, **_: Any) -> Array:
    drawn = _drawn(facts, random.draw_normal)
    return combine(lambda n, m, s: m + s * n, drawn, _array(mean), _array(std))


@_row("bernoulli")
def _bernoulli(facts: Facts, a: Any, p: Any = None, **_: Any) -> Array:
    share, drawn = _array(a if p is None else p), _drawn(facts, random.draw_uniform)
    return combine(lambda u, q: pointwise("lt", u, q), drawn, share)


@_row("native_dropout")
def _native_dropout(facts: Facts, a: Array, p: float, train: bool | None) -> Any:
    if not train or p == 0.0:
        return a, arr.number(1.0, a.shape, a.batch)
    keep = combine(lambda u: pointwise("ge", u, p), _drawn(facts, random.draw_uniform))
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return combine(lambda v, k: v * (scale * k), a, keep), keep


# ---- shapes


@_row("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze")
@_row("view_copy", "_reshape_alias")
def _view(facts: Facts, a: Array, *_: Any, **__: Any) -> Array:
    return arr.reshape(a, facts.shape, facts.batch)


@_row("expand", "expand_copy", "broadcast_to")
def _expand(facts: Facts, a: Array, *_: Any, **__: Any) -> Array:
    return arr.expand(a, facts.shape, facts.batch)


@_row("permute")
def _permute(facts: Facts, a: Array, order: Sequence[int]) -> Array:
    return arr.permute(a, [axis % len(a.shape) for axis in order])


@_row("t")
def _t(facts: Facts, a: Array) -> Array:
    return arr.permute(a, [*reversed(range(len(a.shape)))])


@_row("transpose")
def _transpose(facts: Facts, a: Array, first: int, second: int) -> Array:
    order = [*range(len(a.shape))]
    order[first], order[second] = order[second], order[first]
    return arr.permute(a, order)


def _axis(a: Array, axis: int) -> int:
    axis = axis % len(a.shape)
    if axis == a.batch:
        raise refuse("it joins different samples")
    return axis


@_row("split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes", "split_copy")
@_row("unsafe_chunk", "chunk")
def _split(facts: Facts, a: Array, sizes: Any, dim: int = 0) -> list[Array]:
    axis = _axis(a, dim)
    total = a.shape[axis]
    if isinstance(sizes, int):
        whole, rest = divmod(total, sizes)
        sizes = [sizes] * whole + [rest] * bool(rest)
    return arr.cut(a, axis, sizes)


@_row("slice", "slice_copy")
def _slice(
    facts: Facts, a: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    axis = dim % len(a.shape)
    if axis == a.batch:
        if facts.shape == a.shape:
            return a
        raise refuse("it chooses samples")
    places = [*range(a.shape[axis])[slice(start, end, step)]]
    return take(a, axis, places)


def take(a: Array, axis: int, places: Sequence[int]) -> Array:
    return arr.take(a, axis, [places])[0]


@_row("select", "select_copy")
def _select(facts: Facts, a: Array, dim: int, index: Any) -> Array:
    axis = _axis(a, dim)
    if not isinstance(index, int):
        raise refuse("a place that is no constant")
    return arr.pick(a, axis, index % a.shape[axis])


@_row("unbind", "unbind_copy")
def _unbind(facts: Facts, a: Array, dim: int = 0) -> list[Array]:
    return arr.unbind(a, _axis(a, dim))


@_row("cat", "concat")
def _cat(facts: Facts, tensors: Sequence[Array], dim: int = 0) -> Array:
    rank = max(len(a.shape) for a in tensors)
    tensors = [a for a in tensors if len(a.shape) == rank]  # torch leaves out empty ones [0]
    return arr.concat(tensors, dim % rank)


@_row("stack")
def _stack(facts: Facts, tensors: Sequence[Array], dim: int = 0) -> Array:
    return arr.stack(tensors, dim % len(facts.shape))


@_row("repeat")
def _repeat(facts: Facts, a: Array, times: Sequence[int]) -> Array:
    result = arr.padded(a, len(times))
    for axis, count in enumerate(times):
        if count == 1 or axis == facts.batch:
            continue
        if result.shape[axis] == 1:
            result = replace(result, shape=arr.put(result.shape, axis, count))
        else:
            result = arr.concat([result] * count, axis)
    return replace(result, batch=facts.batch)


@_row("roll")
def _roll(facts: Facts, a: Array, shifts: Any, dims: Any = ()) -> Array:
    if not dims:
        if len(arr.long_axes(a.shape)) > 1:
            raise refuse("it rolls all axes at once")
        dims = arr.long_axes(a.shape)
    for shift, dim in zip(shifts, dims):
        axis = _axis(a, dim)
        size = a.shape[axis]
        a = take(a, axis, [(k - shift) % size for k in range(size)])
    return a


@_row("flip")
def _flip(facts: Facts, a: Array, dims: Sequence[int]) -> Array:
    for dim in dims:
        axis = _axis(a, dim)
        a = take(a, axis, [*reversed(range(a.shape[axis]))])
    return a


@_row("slice_scatter")
def _slice_scatter(
    facts: Facts,
    a: Array,
    source: Array,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Array:
    axis = dim % len(a.shape)
    if axis == a.batch:
        if source.shape == a.shape:
            return _filled_like(a, source)
        raise refuse("it chooses samples")
    places = [*range(a.shape[axis])[slice(start, end, step)]]
    return _scattered(a, source, axis, places)


def _filled_like(a: Array, source: Array) -> Array:
    return replace(source, shape=a.shape, batch=a.batch)


def _scattered(a: Array, source: Array, axis: int, places: Sequence[int]) -> Array:
    """An array in which some places of an axis are another one's."""
    count = a.shape[axis]
    both = arr.concat([a, source], axis)
    order = [*range(count)]
    for at, place in enumerate(places):
        order[place] = count + at
    return take(both, axis, order)


@_row("select_scatter")
def _select_scatter(facts: Facts, a: Array, source: Array, dim: int, index: int) -> Array:
    axis = _axis(a, dim)
    return _scattered(a, arr.add_axis(source, axis), axis, [index % a.shape[axis]])


@_row("index_select")
def _index_select(facts: Facts, a: Array, dim: int, index: Any) -> Array:
    return take(a, _axis(a, dim), _places(index, a.shape[dim]))


@_row("index")
def _index(facts: Facts, a: Array, indices: Sequence[Any]) -> Array:
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        raise refuse("it has several indices")
    axis, index = given[0]
    return take(a, _axis(a, axis), _places(index, a.shape[axis]))


def _places(index: Any, count: int) -> list[int]:
    """Constant places of an axis."""
    if not isinstance(index, torch.Tensor) or index.dim() != 1:
        raise refuse("its index is no constant vector")
    if index.dtype == torch.bool:
        return [at for at, kept in enumerate(index.tolist()) if kept]
    return [int(place) % count for place in index.tolist()]


@_row("gather")
def _gather(facts: Facts, a: Array, dim: int, index: Any, **_: Any) -> Array:
    axis = _axis(a, dim)
    if not isinstance(index, Array):
        raise refuse("its index is no value of a sample")
    if index.shape[axis] != 1:
        raise refuse("it gathers several places by values of a sample")
    count = a.shape[axis]
    places = [combine(lambda i, k=k: pointwise("eq", i, float(k)), index) for k in range(count)]
    chosen = arr.concat(places, axis)
    return arr.reduced("sum", combine(lambda v, c: f.where(c, v, 0.0), a, chosen), [axis], True)


# ---- sums and other reductions


def _axes(a: Array, dim: Any) -> list[int]:
    rank = len(a.shape)
    if dim is None or dim == []:
        return [*range(rank)]
    return [axis % rank for axis in ([dim] if isinstance(dim, int) else dim)]


def _over_axes(op: str) -> Row:
    def apply(facts: Facts, a: Array, dim: Any = None, keepdim: bool = False, **_: Any) -> Array:
        return arr.reduced(op, a, _axes(a, dim), keepdim)

    return apply


for _name in ("sum", "mean", "amax"):
    ROWS[_name] = _over_axes(_name)


@_row("amin")
def _amin(facts: Facts, a: Array, dim: Any = None, keepdim: bool = False) -> Array:
    flipped = combine(lambda v: -v, a)
    return combine(lambda v: -v, arr.reduced("amax", flipped, _axes(a, dim), keepdim))


@_row("max.dim")
def _max(facts: Facts, a: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    places = _argmax(facts, a, dim, True)
    value = _gather(facts, a, dim, places)
    if keepdim:
        return value, places
    axis = _axis(a, dim)
    return arr.pick(value, axis, 0), arr.pick(places, axis, 0)


@_row("min.dim")
def _min(facts: Facts, a: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    value, places = _max(facts, combine(lambda v: -v, a), dim, keepdim)
    return combine(lambda v: -v, value), places


@_row("max.default")
def _largest(facts: Facts, a: Array) -> Array:
    return arr.reduced("amax", a, _axes(a, None), False)


@_row("argmax")
def _argmax(facts: Facts, a: Array, dim: Any = None, keepdim: bool = False) -> Array:
    if dim is None:
        if len(arr.long_axes(a.shape)) > 1 or a.batch is not None:
            raise refuse("it joins different samples")
        dim = -1
    axis = _axis(a, dim)
    a = arr.materialised(a)
    long = arr.long_axes(a.base)
    if a.base[axis] == 1:
        return combine(lambda v: 0.0 * v, a)
    if not a.flat or long != [axis]:
        first = next(k for k in long if k != axis)
        inside = axis - (axis > first)
        rows = [_argmax(facts, row, inside, True) for row in arr.unbind(a, first)]
        places = arr.stack(rows, first)
        return places if keepdim else arr.pick(places, axis, 0)
    largest = Tracer(node("argmax", (a.value.node,), (), (), where_called()))
    base = (1,) * len(a.shape)
    result = Array(largest, base, (*a.shape[:axis], 1, *a.shape[axis + 1 :]), a.batch)
    return result if keepdim else arr.pick(result, axis, 0)


@_row("var")
def _var(
    facts: Facts, a: Array, dim: Any = None, correction: Any = 1, keepdim: bool = False
) -> Array:
    axes = _axes(a, dim)
    count = prod([a.shape[axis] for axis in axes])
    value = arr.reduced("var", a, axes, keepdim)
    correction = 1 if correction is None else correction
    if correction == 0:
        return value
    scale = count / (count - correction) if count > correction else math.nan
    return combine(lambda v: scale * v, value)


@_row("std")
def _std(facts: Facts, a: Array, *args: Any, **kwargs: Any) -> Array:
    return combine(f.sqrt, _var(facts, a, *args, **kwargs))


@_row("var_mean")
def _var_mean(facts: Facts, a: Array, dim: Any = None, **kwargs: Any) -> tuple[Array, Array]:
    mean = arr.reduced("mean", a, _axes(a, dim), bool(kwargs.get("keepdim", False)))
    return _var(facts, a, dim, **kwargs), mean


@_row("prod")
def _prod(facts: Facts, a: Array, dim: int = 0, keepdim: bool = False, **_: Any) -> Array:
    axis = _axis(a, dim)
    rows = arr.unbind(a, axis)
    total = rows[0]
    for row in rows[1:]:
        total = combine(lambda u, v: u * v, total, row)
    return arr.add_axis(total, axis) if keepdim else total


@_row("any", "all")
def _refused_any(facts: Facts, *_: Any, **__: Any) -> Array:
    raise refuse("a reduction of conditions")


@_row("any.dim")
def _any(facts: Facts, a: Array, dim: int, keepdim: bool = False) -> Array:
    ones = combine(lambda v: pointwise("ne", v, 0.0), a)
    return arr.reduced("amax", ones, [_axis(a, dim)], keepdim)


@_row("all.dim")
def _all(facts: Facts, a: Array, dim: int, keepdim: bool = False) -> Array:
    zeros = combine(lambda v: pointwise("eq", v, 0.0), a)
    found = arr.reduced("amax", zeros, [_axis(a, dim)], keepdim)
    return combine(lambda v: 1.0 - v, found)


@_row("linalg_vector_norm")
def _norm(
    facts: Facts, a: Array, order: float = 2.0, dim: Any = None, keepdim: bool = False, **_: Any
) -> Array:
    axes = _axes(a, dim)
    if order == 2.0:
        total = arr.reduced("sum", combine(lambda v: v * v, a), axes, keepdim)
        # the gradient of the norm of zeros is 0
        return combine(_root, total)
    if order == 1.0:
        return arr.reduced("sum", combine(f.abs, a), axes, keepdim)
    if order == math.inf:
        return arr.reduced("amax", combine(f.abs, a), axes, keepdim)
    raise refuse(f"a norm of order {order}")


def _root(v: Any) -> Any:
    positive = v > 0
    return f.where(positive, f.sqrt(f.where(positive, v, 1.0)), v)


@_row("logsumexp")
def _logsumexp(facts: Facts, a: Array, dim: Any, keepdim: bool = False) -> Array:
    axes = _axes(a, dim)
    largest = combine(f.stop_gradient, arr.reduced("amax", a, axes, True))
    total = arr.reduced("sum", combine(lambda v, m: f.exp(v - m), a, largest), axes, True)
    result = combine(lambda s, m: f.log(s) + m, total, largest)
    for axis in sorted(axes, reverse=True) if not keepdim else ():
        result = arr.pick(result, axis, 0)
    return result


@_row("_softmax", "_safe_softmax", "softmax")
def _softmax(facts: Facts, a: Array, dim: int, *_: Any, **__: Any) -> Array:
    axis = _axis(a, dim)
    largest = combine(f.stop_gradient, arr.reduced("amax", a, [axis], True))
    powers = combine(lambda v, m: f.exp(v - m), a, largest)
    return combine(lambda p, s: p / s, powers, arr.reduced("sum", powers, [axis], True))


@_row("_log_softmax", "log_softmax")
def _log_softmax(facts: Facts, a: Array, dim: int, *_: Any) -> Array:
    axis = _axis(a, dim)
    largest = combine(f.stop_gradient, arr.reduced("amax", a, [axis], True))
    off = combine(lambda v, m: v - m, a, largest)
    total = arr.reduced("sum", combine(f.exp, off), [axis], True)
    return combine(lambda v, s: v - f.log(s), off, total)


@_row("cumsum")
def _cumsum(facts: Facts, a: Array, dim: int, **_: Any) -> Array:
    axis = _axis(a, dim)
    a = arr.materialised(a)
    if a.flat and arr.long_axes(a.base) == [axis]:
        return a.like(reductions.cumsum(a.value))
    rows = arr.unbind(a, axis)
    sums = [rows[0]]
    for row in rows[1:]:
        sums.append(combine(lambda u, v: u + v, sums[-1], row))
    return arr.stack(sums, axis)


# ---- norms


def _normalised(a: Array, axes: Sequence[int], eps: float) -> tuple[Array, Array, Array]:
    mean = arr.reduced("mean", a, axes, True)
    off = combine(lambda v, m: v - m, a, mean)
    var = arr.reduced("var", a, axes, True)
    scale = combine(lambda v: 1.0 / f.sqrt(v + eps), var)
    return combine(lambda v, s: v * s, off, scale), mean, scale


def _affine(value: Array, weight: Any, bias: Any) -> Array:
    if weight is not None:
        value = combine(lambda v, w: v * w, value, weight)
    if bias is not None:
        value = combine(lambda v, b: v + b, value, bias)
    return value


@_row("native_layer_norm")
def _layer_norm(
    facts: Facts, a: Array, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Array, Array, Array]:
    axes = [*range(len(a.shape) - len(shape), len(a.shape))]
    value, mean, scale = _normalised(a, axes, eps)
    return _affine(value, weight, bias), mean, scale


@_row("native_group_norm")
def _group_norm(
    facts: Facts,
    a: Array,
    weight: Any,
    bias: Any,
    _: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    if a.batch != 0 or a.shape[0] != 1:
        raise refuse("samples are not the first axis")
    apart = arr.reshape(a, (1, groups, channels // groups * pixels), 0)
    value, mean, scale = _normalised(apart, [2], eps)
    value = arr.reshape(value, a.shape, 0)
    ones = (1,) * (len(a.shape) - 2)
    wide = [None if w is None else arr.reshape(w, (channels, *ones), None) for w in (weight, bias)]
    return _affine(value, *wide), mean, scale


# ---- products


@_row("mm", "bmm", "matmul")
def _mm(facts: Facts, a: Array, b: Array, **_: Any) -> Array:
    return arr.matmul(a, b)


@_row("mv")
def _mv(facts: Facts, a: Array, b: Array) -> Array:
    return arr.pick(arr.matmul(a, arr.add_axis(b, 1)), 1, 0)


@_row("dot")
def _dot(facts: Facts, a: Array, b: Array) -> Array:
    return arr.reduced("sum", combine(lambda u, v: u * v, a, b), [0], False)


@_row("addmm", "baddbmm")
def _addmm(facts: Facts, c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    product = arr.matmul(a, b)
    if alpha != 1:
        product = combine(lambda v: alpha * v, product)
    if beta == 0:
        return product
    return combine(lambda p, v: p + (v if beta == 1 else beta * v), product, c)


@_row("addmv")
def _addmv(facts: Facts, c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    product = _mv(facts, a, b)
    return combine(lambda p, v: alpha * p + beta * v, product, c)


@_row("addr")
def _addr(facts: Facts, c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
    product = combine(lambda u, v: u * v, arr.add_axis(a, 1), arr.add_axis(b, 0))
    return combine(lambda p, v: alpha * p + beta * v, product, c)


# ---- backwards that a step states itself


@_row("own_gradient")
def own_gradient(value: Array, inputs: Sequence[Array], slopes: Sequence[Array]) -> Array:
    """The value with the gradient of Σ slope · input, elementwise."""

    def apply(hard: Any, *rest: Any) -> Any:
        count = len(rest) // 2
        soft: Any = 0.0
        for v, slope in zip(rest[:count], rest[count:], strict=True):
            if _is_plain(v):
                continue
            term = pointwise("mul", f.stop_gradient(slope), v)
            soft = term if _is_plain(soft) else soft + term
        if _is_plain(soft):
            return f.stop_gradient(hard)
        return straight_through(hard, soft)

    return combine(apply, value, *inputs, *slopes)


def stop(v: Any) -> Any:
    """Without a gradient."""
    return v if _is_plain(v) else f.stop_gradient(v)
