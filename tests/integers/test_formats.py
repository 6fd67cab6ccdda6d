"""Formats of whole numbers, and functions as hinges: what they promise is what float32 computes."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elman.integers.formats import EXACT, Format, balanced, number, result, rounded, total
from elman.integers.hinges import FUNCTIONS, POSITIVE, hinges
from elman.ir.graph import Node

FORMATS = st.builds(
    lambda exponent, a, b: Format(exponent, min(a, b), max(a, b)),
    st.integers(-20, 6),
    st.integers(-5000, 5000),
    st.integers(-5000, 5000),
)
SEMANTICS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "minimum": min,
    "maximum": max,
    "neg": lambda a: -a,
    "abs": abs,
    "relu": lambda a: max(a, 0),
    "sign": lambda a: (a > 0) - (a < 0),
    "round": round,  # of fractions: half to even
    "floor": math.floor,
    "where": lambda c, a, b: a if c else b,
}


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.data())
def test_results_lie_in_their_format(data):
    """Of any whole numbers of two formats the exact result has the format, and float32's is it."""
    op = data.draw(st.sampled_from([*SEMANTICS]))
    count = SEMANTICS[op].__code__.co_argcount if hasattr(SEMANTICS[op], "__code__") else 1
    count = 2 if op in ("minimum", "maximum") else count
    formats = [data.draw(FORMATS) for _ in range(count)]
    n = [data.draw(st.integers(of.low, of.high)) for of in formats]
    exact = [Fraction(k) * Fraction(2) ** of.exponent for k, of in zip(n, formats, strict=True)]
    of = result(Node(op, tuple(Node("const") for _ in n)), formats)
    assert of is not None
    want = Fraction(SEMANTICS[op](*exact))
    units = want / Fraction(2) ** of.exponent
    assert units.denominator == 1
    assert of.low <= units <= of.high
    if of.is_exact and op in ("add", "sub", "mul"):
        single = [np.float32(float(v)) for v in exact]
        assert Fraction(float(SEMANTICS[op](*single))) == want


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(FORMATS, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_sums_are_exact_in_any_order(formats, source):
    """Every partial sum has the format of the total."""
    of = total(formats)
    values = [math.ldexp(source.randint(f.low, f.high), f.exponent) for f in formats]
    source.shuffle(values)
    partial = np.float32(0)
    for k, value in enumerate(values):
        partial = np.float32(partial + np.float32(value))
        units = math.fsum(values[: k + 1]) / 2.0**of.exponent
        assert units == int(units)
        assert of.low <= units <= of.high
        if of.is_exact:
            assert float(partial) == math.fsum(values[: k + 1])


@given(st.integers(-(2**40), 2**40), st.integers(-3, 45))
@settings(max_examples=300, derandomize=True, deadline=None)
def test_rounding_is_half_to_even(n, shift):
    """As float32's and torch's."""
    assert rounded(n, shift) == round(Fraction(n) / Fraction(2) ** shift)


def test_numbers_have_formats():
    """Powers of two are 1; what has more than 24 bits, or is not finite, has none."""
    assert number(0.5) == Format(-1, 1, 1)
    assert number(-6.0) == Format(1, -3, -3)
    assert number(0.0) == Format(0, 0, 0)
    assert number(0.1) is None
    assert number(math.inf) is None
    assert balanced(-3, 8) == Format(-3, -127, 127)


RANGES = {"log": (0.05, 8.0), "sqrt": (0.0, 6.0), "reciprocal": (0.3, 5.0), "exp": (-6.0, 2.0)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_hinges_are_near_their_function(name):
    """Half a unit of the results, and sums that are exact in any order."""
    low, high = RANGES.get(name, (-5.0, 4.0))
    of = Format(-8, round(low * 256), round(high * 256))
    if name in POSITIVE:
        of = Format(-8, max(of.low, 0 if name == "sqrt" else 1), of.high)
    fitted = hinges(name, of, 9)
    unit = 2.0**fitted.format.exponent
    worst = 0.0
    for n in range(of.low, of.high + 1):
        v = math.ldexp(n, of.exponent)
        worst = max(worst, abs(fitted(v) - FUNCTIONS[name](v)))
        assert fitted.format.low <= round(fitted(v) / unit) <= fitted.format.high
    assert worst <= 0.51 * unit
    assert len(fitted.terms) <= 40
    # whole numbers of the sum, in the finest unit that a term needs
    parts = [Fraction(fitted.bias)]
    parts += [Fraction(slope) * Fraction(2) ** of.exponent for slope, _ in fitted.terms]
    finest = max(part.denominator for part in parts)
    reach = [Fraction(slope) * Fraction(max(abs(knot), abs(high))) for slope, knot in fitted.terms]
    assert (abs(parts[0]) + sum(map(abs, reach))) * finest <= EXACT


def test_hinges_of_one_argument():
    """A domain of two numbers, and one on which the function is constant."""
    assert hinges("tanh", Format(-2, 3, 4), 9)(0.75) == pytest.approx(math.tanh(0.75), abs=2e-3)
    flat = hinges("sigmoid", Format(2, 10, 20), 9)
    assert flat(60.0) == pytest.approx(1.0, abs=2e-3)
