"""The spellings of ops in Triton, over blocks of float32 [units, samples]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from elman.ir.ops import spell_calls

SPELL: dict[str, str] = {
    **spell_calls("lib.{name}({args})"),
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "relu": "tl.where({0} <= 0.0, 0.0, {0})",
    "exp": "tl.exp({0})",
    "log": "tl.log({0})",
    "sqrt": "tl.sqrt({0})",
    "abs": "tl.abs({0})",
    "sign": "({0} > 0.0).to(tl.float32) - ({0} < 0.0).to(tl.float32)",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "erf": "tl.erf({0})",
    "floor": "tl.floor({0})",
    "round": "lib.nearest({0})",
    "pow": "lib.power({0}, {1})",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "where": "tl.where({0} != 0.0, {1}, {2})",
    "lt": "({0} < {1}).to(tl.float32)",
    "le": "({0} <= {1}).to(tl.float32)",
    "gt": "({0} > {1}).to(tl.float32)",
    "ge": "({0} >= {1}).to(tl.float32)",
    "eq": "({0} == {1}).to(tl.float32)",
    "ne": "({0} != {1}).to(tl.float32)",
    "stop": "{0}",
    "surrogate": "{0}",
    "clip_gradient": "{0}",
    "uniform": "lib.uniform({0}, {1}, {unit}, {stream})",
}


class Fold(NamedTuple):
    """A reduction by a binary operation.

    Attributes:
        call: the function that reduces a block along an axis.
        neutral: the neutral number, for padding.
        joined: text that combines two values.
    """

    call: str
    neutral: float
    joined: str

    def join(self, values: Sequence[str]) -> str:
        """Text that combines some values."""
        return reduce(self.joined.format, values)


FOLDS = {  # mean, var and argmax use these
    "sum": Fold("tl.sum", 0.0, "{0} + {1}"),
    "amax": Fold("lib.amax", -math.inf, SPELL["maximum"]),  # NaN if any unit is NaN
}


def spell(op: str, args: Sequence[str], unit: str = "", stream: int = 0) -> str:
    """An elementwise op; ``unit``: the units [units, 1] of its block."""
    return SPELL[op].format(*args, unit=unit, stream=stream)


def number(value: float) -> str:
    """A constant as text; for Triton -0.0 is 0.0, unlike in :func:`block`."""
    if math.isfinite(value):
        return repr(value)
    return f'float("{value}")'


def block(value: float) -> str:
    """A constant as a block [1, 1]."""
    text = f"tl.full([1, 1], {number(abs(value) if value == 0.0 else value)}, tl.float32)"
    return f"({text} * -1.0)" if value == 0.0 and math.copysign(1.0, value) < 0 else text


def spell_sum(coefs: Sequence[float], bias: float, terms: Sequence[str]) -> str:
    """``bias + Σ coef · term``; no leading minus: Triton's ``-x`` is 0 - x, so -(0.0) is 0.0."""
    text = ""
    for coef, term in zip(coefs, terms, strict=True):
        sign = "-" if text and math.copysign(1.0, coef) < 0 else "+"
        size = abs(coef) if sign == "-" else coef
        factor = number(size) if size else block(size)
        part = term if size == 1.0 else f"{factor} * {term}"
        text = f"{text} {sign} {part}" if text else part
    if bias and text:
        text = f"{text} + {number(bias)}"
    return text or block(bias)
