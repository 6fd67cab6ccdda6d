"""torch's operations (ATen) as operations of arrays: one row each.

A row is found by the operation's name, with its overload or without. It is called with arrays in
place of tensors, and with what else the operation was given. torch's rules of promotion are in the
types of the tape; a formula computes in floating-point numbers, bools are 1 and 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from functools import reduce as fold
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import torch

from elman.frontend import draws as random
from elman.frontend import functions as f
from elman.frontend import reductions
from elman.frontend.activations import hardtanh, leaky_relu
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


def find(name: str, rows: Mapping[str, Any] = ROWS) -> Any:
    """The row of an operation; None: there is none."""
    return rows.get(name) or rows.get(name.partition(".")[0])


def _row_of_facts(*names: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        ROWS.update(dict.fromkeys(names, function))
        return function

    return add


def _row(*names: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        _row_of_facts(*names)(lambda facts, *args, **kwargs: function(*args, **kwargs))
        return function

    return add


def _array(value: Any) -> Array:
    return value if isinstance(value, Array) else arr.number(float(value))


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


def _clip(v: Any, low: Any = None, high: Any = None) -> Any:
    low = -math.inf if low is None else low
    high = math.inf if high is None else high
    return f.clip(v, low, high)


def _not_zero(v: Any) -> Any:
    return pointwise("ne", v, 0.0)


def _logical(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: function(*map(_not_zero, values))


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


def _op(name: str) -> Callable[..., Any]:
    return lambda *values: pointwise(name, *values)


# What torch and elman call alike: operations of a formula, and functions of its authors.
_OPS = ("mul", "neg", "sign", "lt", "le", "gt", "ge", "eq", "ne")
_FUNCTIONS = (
    *("abs", "exp", "expm1", "log", "sqrt", "sin", "cos", "atan", "asinh", "tanh", "sigmoid"),
    *("relu", "silu", "erf", "floor", "minimum", "maximum", "where", "remainder"),
)
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    **{name: _op(name) for name in _OPS},
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
    "logical_and": _logical(_op("mul")),
    "logical_or": _logical(f.maximum),
    "logical_xor": _logical(_op("ne")),
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
ROWS["add"] = _of_bools(f.maximum, _scaled("add"))
ROWS["bitwise_not"] = _of_bools(lambda v: pointwise("sub", 1.0, v))
for _names, _function in (("and", _op("mul")), ("or", f.maximum), ("xor", _op("ne"))):
    ROWS[f"bitwise_{_names}"] = ROWS[f"__{_names}__"] = _of_bools(_function)


@_row("log_sigmoid_forward")
def _log_sigmoid(a: Array) -> tuple[Array, Array]:
    return combine(lambda v: -f.softplus(-v), a), arr.number(0.0)


def _as_type(a: Array, before: torch.dtype, after: torch.dtype) -> Array:
    """Numbers of another type: bools are 1 and 0, whole numbers are rounded towards 0."""
    if after == torch.bool and before != torch.bool:
        return combine(_not_zero, a)
    if before.is_floating_point and not (after.is_floating_point or after.is_complex):
        return combine(_trunc, a)
    is_half = after in (torch.float16, torch.bfloat16) and before.is_floating_point
    if after != before and (after.is_complex or is_half):
        raise refuse(f"numbers become {after}")
    return a


@_row_of_facts("_to_copy")
def _cast(facts: Facts, a: Array, **_: Any) -> Array:
    return _as_type(a, facts.dtypes[0], facts.dtype)


@_row_of_facts("copy")
def _copy(facts: Facts, a: Array, b: Any, *_: Any) -> Array:
    source = _array(b)
    if len(facts.dtypes) > 1:
        source = _as_type(source, facts.dtypes[1], facts.dtype)
    return arr.expand(source, facts.shape, facts.batch)


# ---- made of numbers


def _filled(number: float | None) -> Row:
    """The row of a tensor of one number; None: the one that is given."""

    def apply(facts: Facts, *args: Any, **_: Any) -> Array:
        value = _array(args[-1] if number is None else number)
        return arr.expand(value, facts.shape, facts.batch)

    return apply


for _name, _number in (("zeros", 0.0), ("ones", 1.0), ("full", None), ("empty", math.nan)):
    for _form in (_name, f"{_name}_like", f"new_{_name}"):
        ROWS[_form] = _filled(_number)
ROWS.update({"fill": _filled(None), "zero": _filled(0.0), "empty_strided": _filled(math.nan)})
_row("scalar_tensor")(_array)


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
    return Array(draw(like), facts.shape, facts.shape, facts.batch)


class Draw(NamedTuple):
    """An operation that draws: a function of a random number, and of the operation's arguments.

    Attributes:
        draw: the random numbers.
        first: of the arguments, by position.
        value: the function, of numbers, tracers and tensors alike.
    """

    draw: Callable[[Any], Tracer]
    first: int
    value: Callable[..., Any]


def _affine_draw(n: Any, mean: Any = 0.0, std: Any = 1.0, *_: Any) -> Any:
    return mean + std * n


def _exponential(u: Any, rate: Any = 1.0) -> Any:
    return -(math.log(1.0 - u) if _is_plain(u) else f.log(1.0 - u)) / rate


DRAWS = {
    **dict.fromkeys(("rand", "rand_like"), Draw(random.draw_uniform, 1, lambda u, *_: u)),
    **dict.fromkeys(("randn", "randn_like"), Draw(random.draw_normal, 1, lambda n, *_: n)),
    "uniform": Draw(random.draw_uniform, 1, lambda u, low=0.0, high=1.0: low + (high - low) * u),
    "normal": Draw(random.draw_normal, 1, _affine_draw),
    **{
        f"normal.{kinds}": Draw(random.draw_normal, 0, _affine_draw)
        for kinds in ("Tensor_float", "Tensor_Tensor", "float_Tensor", "float_float")
    },
    "exponential": Draw(random.draw_uniform, 1, _exponential),
    "bernoulli.float": Draw(random.draw_uniform, 1, lambda u, p=0.5: u < p),
    "bernoulli": Draw(random.draw_uniform, -1, lambda u, p: u < p),
}


def _of_draws(row: Draw) -> Row:
    def apply(facts: Facts, *args: Any) -> Array:
        given = [_array(v) for v in args[row.first :] if v is not None]
        return combine(row.value, _drawn(facts, row.draw), *given)

    return apply


ROWS.update({name: _of_draws(row) for name, row in DRAWS.items()})


@_row_of_facts("native_dropout")
def _native_dropout(facts: Facts, a: Array, p: float, train: bool | None) -> Any:
    if not train or p == 0.0:
        return a, arr.number(1.0, a.shape, a.batch)
    keep = combine(lambda u: pointwise("ge", u, p), _drawn(facts, random.draw_uniform))
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return combine(lambda v, k: v * (scale * k), a, keep), keep


# ---- shapes


def _axis(a: Array, axis: int) -> int:
    axis = axis % len(a.shape)
    if axis == a.batch:
        raise refuse("it joins different samples")
    return axis


_row("alias", "clone", "lift_fresh", "lift_fresh_copy")(lambda a, **_: a)
_row("permute")(arr.permute)
_row("t")(lambda a: arr.permute(a, [*reversed(range(len(a.shape)))]))
_row("unbind", "unbind_copy")(lambda a, dim=0: arr.unbind(a, _axis(a, dim)))
_row("stack")(lambda rows, dim=0: arr.stack(rows, dim % (len(rows[0].shape) + 1)))
_row("index_select")(lambda a, dim, index: _index(a, [*[None] * _axis(a, dim), index]))


@_row_of_facts("view", "_unsafe_view", "squeeze", "unsqueeze", "view_copy", "_reshape_alias")
def _view(facts: Facts, a: Array, *_: Any, **__: Any) -> Array:
    return arr.reshape(a, facts.shape, facts.batch)


@_row_of_facts("expand", "expand_copy")
def _expand(facts: Facts, a: Array, *_: Any, **__: Any) -> Array:
    return arr.expand(a, facts.shape, facts.batch)


@_row("transpose")
def _transpose(a: Array, first: int, second: int) -> Array:
    order = [*range(len(a.shape))]
    order[first], order[second] = order[second], order[first]
    return arr.permute(a, order)


@_row("split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes", "split_copy")
def _split(a: Array, sizes: Any, dim: int = 0) -> list[Array]:
    axis = _axis(a, dim)
    if isinstance(sizes, int):
        whole, rest = divmod(a.shape[axis], sizes)
        sizes = [sizes] * whole + [rest] * bool(rest)
    return arr.cut(a, axis, sizes)


@_row_of_facts("slice", "slice_copy")
def _slice(
    facts: Facts, a: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    axis = dim % len(a.shape)
    if axis == a.batch:
        if facts.shape == a.shape:
            return a
        raise refuse("it chooses samples")
    return arr.take(a, axis, range(a.shape[axis])[slice(start, end, step)])


@_row("select", "select_copy")
def _select(a: Array, dim: int, index: Any) -> Array:
    axis = _axis(a, dim)
    if not isinstance(index, int):
        raise refuse("a place that is no constant")
    return arr.pick(a, axis, index % a.shape[axis])


@_row("cat")
def _cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    rank = max(len(a.shape) for a in tensors)
    tensors = [a for a in tensors if len(a.shape) == rank]  # torch leaves out empty ones [0]
    return arr.concat(tensors, dim % rank)


@_row_of_facts("repeat")
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
def _roll(a: Array, shifts: Any, dims: Any = ()) -> Array:
    if not dims:  # all axes as one, that of samples too
        dims = arr.long_axes(a.shape)
        if len(dims) > 1 or a.batch is not None:
            raise refuse("it rolls all axes at once")
    for shift, dim in zip(shifts, dims):
        axis = _axis(a, dim)
        size = a.shape[axis]
        if a.matrix and not a.of_weights and a.base[axis] != 1 and shift % size:
            a = arr.rolled(a, axis, shift % size)
        else:
            a = arr.take(a, axis, [(k - shift) % size for k in range(size)])
    return a


@_row("flip")
def _flip(a: Array, dims: Sequence[int]) -> Array:
    for dim in dims:
        axis = _axis(a, dim)
        a = arr.take(a, axis, range(a.shape[axis])[::-1])
    return a


@_row("slice_scatter")
def _slice_scatter(
    a: Array, source: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Array:
    axis = dim % len(a.shape)
    if axis == a.batch:
        if source.shape == a.shape:
            return replace(source, batch=a.batch)
        raise refuse("it chooses samples")
    return _scattered(a, source, axis, range(a.shape[axis])[slice(start, end, step)])


@_row("select_scatter")
def _select_scatter(a: Array, source: Array, dim: int, index: int) -> Array:
    axis = _axis(a, dim)
    return _scattered(a, arr.add_axis(source, axis), axis, [index % a.shape[axis]])


def _scattered(a: Array, source: Array, axis: int, places: Sequence[int]) -> Array:
    """An array in which some places of an axis are another one's."""
    count = a.shape[axis]
    if len(places) == 1 and a.matrix and not a.of_weights and a.base[axis] != 1:
        base = arr.put((1,) * len(a.shape), axis, count)
        here = Array(arr.one_hot(places[0], count), base, base, a.batch)
        return arr.combine(f.where, here, source, a)
    order = [*range(count)]
    for at, place in enumerate(places):
        order[place] = count + at
    return arr.take(arr.concat([a, source], axis), axis, order)


@_row("index")
def _index(a: Array, indices: Sequence[Any]) -> Array:
    given = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        raise refuse("it has several indices")
    axis, index = given[0]
    axis = _axis(a, axis)
    if not isinstance(index, torch.Tensor) or index.dim() != 1:
        raise refuse("its index is no constant vector")
    if index.dtype == torch.bool:
        index = index.nonzero().flatten()
    return arr.take(a, axis, [place % a.shape[axis] for place in index.tolist()])


@_row("gather")
def _gather(a: Array, dim: int, index: Any, **_: Any) -> Array:
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


def _over(op: str, a: Array, dim: Any = None, keepdim: bool = False, **_: Any) -> Array:
    return arr.reduced(op, a, _axes(a, dim), keepdim)


for _name in ("sum", "mean", "amax"):
    _row(_name)(partial(_over, _name))
_row("max.default")(partial(_over, "amax"))


@_row("amin")
def _amin(a: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return combine(_op("neg"), _over("amax", combine(_op("neg"), a), dim, keepdim))


@_row("max.dim")
def _max(a: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    places = _argmax(a, dim, True)
    value = _gather(a, dim, places)
    over = [] if keepdim else [_axis(a, dim)]
    return arr.squeeze(value, over), arr.squeeze(places, over)


@_row("min.dim")
def _min(a: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    value, places = _max(combine(_op("neg"), a), dim, keepdim)
    return combine(_op("neg"), value), places


@_row("argmax")
def _argmax(a: Array, dim: Any = None, keepdim: bool = False) -> Array:
    if dim is None:
        if len(arr.long_axes(a.shape)) > 1 or a.batch is not None:
            raise refuse("it joins different samples")
        dim = -1
    axis = _axis(a, dim)
    a = arr.materialised(a)
    if a.base[axis] == 1:
        places = combine(lambda v: 0.0 * v, a)
    elif a.flat and a.axes == [axis]:
        largest = Tracer(node("argmax", (a.value.node,), (), (), where_called()))
        shape = arr.put(a.shape, axis, 1)
        places = replace(a, value=largest, base=shape, shape=shape)
    else:
        first = next(k for k in a.axes if k != axis)
        inside = axis - (axis > first)
        places = arr.by_slices(lambda row: _argmax(row, inside, True), [a], first)
    return places if keepdim else arr.squeeze(places, [axis])


@_row("var")
def _var(a: Array, dim: Any = None, correction: Any = 1, keepdim: bool = False) -> Array:
    count = prod([a.shape[axis] for axis in _axes(a, dim)])
    value = _over("var", a, dim, keepdim)
    correction = 1 if correction is None else correction
    if correction == 0:
        return value
    scale = count / (count - correction) if count > correction else math.nan
    return combine(lambda v: scale * v, value)


_row("var_mean")(
    lambda a, dim=None, correction=1, keepdim=False: (
        _var(a, dim, correction, keepdim),
        _over("mean", a, dim, keepdim),
    )
)
_row("std")(lambda *args, **kwargs: combine(f.sqrt, _var(*args, **kwargs)))


@_row("prod")
def _prod(a: Array, dim: int = 0, keepdim: bool = False, **_: Any) -> Array:
    axis = _axis(a, dim)
    total = fold(partial(combine, _op("mul")), arr.unbind(a, axis))
    return arr.add_axis(total, axis) if keepdim else total


@_row("any")
def _any(a: Array, dim: Any = None, keepdim: bool = False) -> Array:
    return _over("amax", combine(_not_zero, a), dim, keepdim)


@_row("all")
def _all(a: Array, dim: Any = None, keepdim: bool = False) -> Array:
    zeros = combine(lambda v: pointwise("eq", v, 0.0), a)
    return combine(lambda v: 1.0 - v, _over("amax", zeros, dim, keepdim))


_NORMS: dict[float, tuple[Callable[..., Any], str]] = {
    1.0: (f.abs, "sum"),
    2.0: (lambda v: v * v, "sum"),
    math.inf: (f.abs, "amax"),
}


@_row("linalg_vector_norm")
def _norm(a: Array, order: float = 2.0, dim: Any = None, keepdim: bool = False, **_: Any) -> Array:
    if order not in _NORMS:
        raise refuse(f"a norm of order {order}")
    function, op = _NORMS[order]
    total = _over(op, combine(function, a), dim, keepdim)
    return combine(_root, total) if order == 2.0 else total


def _root(v: Any) -> Any:
    """The square root, of 0 with the gradient 0, as that of a norm is."""
    positive = v > 0
    return f.where(positive, f.sqrt(f.where(positive, v, 1.0)), v)


def _below_largest(a: Array, dim: Any) -> tuple[Array, Array]:
    """What an array is below its largest value along some axes, and that value: the exponential of
    it overflows nowhere."""
    largest = combine(f.stop_gradient, _over("amax", a, dim, True))
    return combine(_op("sub"), a, largest), largest


@_row("logsumexp")
def _logsumexp(a: Array, dim: Any, keepdim: bool = False) -> Array:
    off, largest = _below_largest(a, dim)
    total = _over("sum", combine(f.exp, off), dim, True)
    result = combine(lambda s, m: f.log(s) + m, total, largest)
    return result if keepdim else arr.squeeze(result, _axes(a, dim))


@_row("_softmax", "_safe_softmax")
def _softmax(a: Array, dim: int, *_: Any, **__: Any) -> Array:
    powers = combine(f.exp, _below_largest(a, dim)[0])
    return combine(_op("div"), powers, _over("sum", powers, dim, True))


@_row("_log_softmax")
def _log_softmax(a: Array, dim: int, *_: Any) -> Array:
    off, _largest = _below_largest(a, dim)
    total = _over("sum", combine(f.exp, off), dim, True)
    return combine(lambda v, s: v - f.log(s), off, total)


@_row("cumsum")
def _cumsum(a: Array, dim: int, **_: Any) -> Array:
    axis = _axis(a, dim)
    a = arr.materialised(a)
    if a.flat and a.axes == [axis]:
        return a.like(reductions.cumsum(a.value))
    return arr.stack([*accumulate(arr.unbind(a, axis), partial(combine, _op("add")))], axis)


# ---- norms


def _normalised(a: Array, axes: Sequence[int], eps: float) -> tuple[Array, Array, Array]:
    mean = arr.reduced("mean", a, axes, True)
    off = combine(_op("sub"), a, mean)
    var = arr.reduced("var", a, axes, True)
    scale = combine(lambda v: 1.0 / f.sqrt(v + eps), var)
    return combine(_op("mul"), off, scale), mean, scale


def _affine(value: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        value = combine(_op("mul"), value, weight)
    return value if bias is None else combine(_op("add"), value, bias)


@_row("native_layer_norm")
def _layer_norm(
    a: Array, shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Array, Array, Array]:
    axes = [*range(len(a.shape) - len(shape), len(a.shape))]
    value, mean, scale = _normalised(a, axes, eps)
    return _affine(value, weight, bias), mean, scale


@_row("native_group_norm")
def _group_norm(
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


@_row("mv")
def _mv(a: Array, b: Array) -> Array:
    return arr.squeeze(arr.matmul(a, arr.add_axis(b, 1)), [1])


def _added(product: Callable[[Array, Array], Array]) -> Row:
    """The row of β c + α product(a, b)."""

    def apply(c: Array, a: Array, b: Array, beta: float = 1, alpha: float = 1) -> Array:
        made = product(a, b)
        if alpha != 1:
            made = combine(lambda v: alpha * v, made)
        if beta == 0:
            return made
        return combine(lambda p, v: p + (v if beta == 1 else beta * v), made, c)

    return apply


_row("mm", "bmm", "matmul")(lambda a, b, **_: arr.matmul(a, b))
_row("addmm", "baddbmm")(_added(arr.matmul))
_row("addmv")(_added(_mv))


# ---- backwards that a step states itself


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
