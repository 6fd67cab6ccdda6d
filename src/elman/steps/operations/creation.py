"""Tensors that an operation makes: of one number, or of random ones by elman's generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any, NamedTuple

from elman.frontend import draws as random
from elman.frontend import functions as f
from elman.frontend.draws import repeat_number
from elman.frontend.heads import cut_dim
from elman.frontend.trace import Tracer, is_number, lift, pointwise
from elman.steps.arrays.arithmetic import combine
from elman.steps.arrays.array import Array, expand, number, refuse
from elman.steps.operations.table import ROWS, Facts, Row, array_of, row, row_of_facts


def _filled(number: float | None) -> Row:
    """The row of a tensor of one number; None: the one that is given."""

    def apply(facts: Facts, *args: Any, **_: Any) -> Array:
        value = array_of(args[-1] if number is None else number)
        return expand(value, facts.shape, facts.batch)

    return apply


for _name, _number in (("zeros", 0.0), ("ones", 1.0), ("full", None), ("empty", math.nan)):
    for _form in (_name, f"{_name}_like", f"new_{_name}"):
        ROWS[_form] = _filled(_number)
ROWS.update({"fill": _filled(None), "zero": _filled(0.0), "empty_strided": _filled(math.nan)})
row("scalar_tensor")(array_of)
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
        return number(fixed, facts.shape, facts.batch)
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
    return -(math.log(1.0 - u) if is_number(u) else f.log(1.0 - u)) / rate


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
        given = [array_of(v) for v in args[row.first :] if v is not None]
        return combine(row.value, _drawn(facts, row.draw), *given)

    return apply


ROWS.update({name: _of_draws(row) for name, row in DRAWS.items()})


@row_of_facts("native_dropout")
def _native_dropout(facts: Facts, a: Array, p: float, train: bool | None) -> Any:
    if not train or p == 0.0:
        return a, number(1.0, a.shape, a.batch)
    keep = combine(lambda u: pointwise("ge", u, p), _drawn(facts, random.draw_uniform))
    scale = 1.0 / (1.0 - p) if p < 1.0 else 0.0
    return combine(lambda v, k: v * (scale * k), a, keep), keep
