"""Functions of one value as sums of hinges, whose knots and slopes are whole numbers.

On a grid of its argument, f(v) is approximated by bias + Σ slope · max(v, knot): a line through
each segment, joined at the knots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from elman.integers.formats import EXACT, Format


def _sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v)) if v > 0 else math.exp(v) / (1 + math.exp(v))


FUNCTIONS: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "tanh": math.tanh,
        "sigmoid": _sigmoid,
        "exp": math.exp,
        "log": math.log,
        "sqrt": math.sqrt,
        "sin": math.sin,
        "cos": math.cos,
        "erf": math.erf,
        "atan": math.atan,
        "asinh": math.asinh,
        "expm1": math.expm1,
        "softplus": lambda v: v if v > 20 else math.log1p(math.exp(v)),
        "reciprocal": lambda v: 1 / v,
    }
)


POSITIVE = ("log", "sqrt", "reciprocal")  # functions of numbers from 0 on


_SLOPE_BITS = 12
_POINTS = 256
_MOST_EXPONENT = 27.0  # exp of it is about 2^39


class Hinges(NamedTuple):
    """A function on a grid.

    Attributes:
        bias: to which the hinges are added.
        terms: (slope, knot) of each hinge, ascending.
        format: of the results, rounded.
    """

    bias: float
    terms: tuple[tuple[float, float], ...]
    format: Format

    def __call__(self, v: float) -> float:
        """The approximation at v, before it is rounded."""
        return self.bias + sum(slope * max(v, knot) for slope, knot in self.terms)


def changing(name: str, least: float, most: float, share: float) -> tuple[float, float]:
    """The part of a range on which a function changes by more than a share of its largest value:
    before and behind, its values at the ends stand for it."""
    if name in ("exp", "expm1"):
        most = min(most, _MOST_EXPONENT)
        least = min(least, most - 1)
    f = FUNCTIONS[name]
    for _ in range(20):
        points = [least + (most - least) * k / _POINTS for k in range(_POINTS + 1)]
        values = [f(v) for v in points if v or name not in POSITIVE or name == "sqrt"]
        points, limit = points[-len(values) :], share / 4 * max(*map(abs, values), 2.0**-24)
        changes = [k for k, v in enumerate(values) if abs(v - values[0]) > limit]
        first = points[max(0, changes[0] - 1)] if changes else least
        changes = [k for k, v in enumerate(values) if abs(v - values[-1]) > limit]
        last = points[min(len(points) - 1, changes[-1] + 1)] if changes else most
        if last - first > 0.75 * (most - least) or last <= first:
            return least, most
        least, most = first, last
    return least, most


@cache
def hinges(name: str, of: Format, bits: int) -> Hinges:
    """A function as hinges, at most about half a unit of the results off.

    Segments are as long as that allows, from left to right. Where no slopes of so few bits that all
    sums are exact allow it, the error doubles.

    Args:
        name: of :data:`FUNCTIONS`.
        of: grid and range of the argument; the function is defined on all of it.
        bits: of the results, the sign included.
    """
    values = [FUNCTIONS[name](math.ldexp(n, of.exponent)) for n in range(of.low, of.high + 1)]
    # two systems' functions differ in their last bit, which must not decide about a knot
    values = [math.ldexp(round(math.ldexp(value, 40)), -40) for value in values]
    largest = max(*map(abs, values), 2.0**-24)
    exponent = math.ceil(math.log2(largest)) - bits + 1
    error = math.ldexp(1.0, exponent - 1)
    if max(values) - min(values) <= error:
        n = round(math.ldexp(values[0], -exponent))
        return Hinges(math.ldexp(n, exponent), (), Format(exponent, n, n))
    steepest = max((abs(b - a) for a, b in pairwise(values)), default=0.0) or 1.0
    finest = math.ceil(math.log2(steepest)) - of.exponent - _SLOPE_BITS
    while True:
        for shift in range(_SLOPE_BITS):  # of the step from one slope to the next
            fitted = _fit(values, of, math.ldexp(1.0, finest + shift), error)
            if fitted is not None and fitted[2] <= EXACT:
                found = Hinges(*fitted[:2], of)
                knots = [knot for _, knot in found.terms]
                ends = [math.ldexp(n, of.exponent) for n in (of.low, of.high)]
                results = [round(math.ldexp(found(v), -exponent)) for v in (*ends, *knots)]
                return found._replace(format=Format(exponent, min(results), max(results)))
        error *= 2


def _fit(
    values: list[float], of: Format, step: float, error: float
) -> tuple[float, tuple[tuple[float, float], ...], int] | None:
    """Bias and hinges whose slopes are multiples of a step, and the largest whole number of their
    sums; None if a segment has no slope."""
    width = math.ldexp(1.0, of.exponent)
    grid = step * width  # of the sum
    at, value = 0, round(values[0] / grid) * grid
    first, before, terms = value, 0.0, list[tuple[float, float]]()
    while at + 1 < len(values):
        low, high, chosen, end = -math.inf, math.inf, None, at
        for k in range(at + 1, len(values)):
            run = (k - at) * width
            low = max(low, (values[k] - error - value) / run)
            high = min(high, (values[k] + error - value) / run)
            least, most = math.ceil(low / step), math.floor(high / step)
            if least > most:
                break
            chosen, end = (least + most) // 2 * step, k
        if chosen is None:
            return None
        if chosen != before:
            terms.append((chosen - before, (of.low + at) * width))
        value, before, at = value + chosen * (end - at) * width, chosen, end
    bias = first - sum(slope * knot for slope, knot in terms)
    last = of.high * width
    most = abs(bias) + sum(abs(slope) * max(abs(knot), abs(last)) for slope, knot in terms)
    return bias, tuple(terms), math.ceil(most / grid)
