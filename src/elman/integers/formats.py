"""Formats: which whole numbers, times which power of two, a value of a formula can be.

A value of a format is n · 2^exponent for a whole n. float32 holds it exactly while |n| ≤ 2^24, so a
sum or a product whose result has such a format has the same bits in float32, in any order, and in
integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from elman.ir.graph import Node
from elman.ir.ops import COMPARISONS

EXACT = 1 << 24  # the largest magnitude up to which float32 holds every whole number


@dataclass(frozen=True)
class Format:
    """Numbers n · 2^exponent.

    Attributes:
        exponent: of the power of two.
        low, high: the least and the largest n.
    """

    exponent: int
    low: int
    high: int

    @property
    def most(self) -> int:
        """The largest magnitude of n."""
        return max(abs(self.low), abs(self.high))

    @property
    def bound(self) -> float:
        """The largest magnitude of the value."""
        return math.ldexp(self.most, self.exponent)

    @property
    def is_exact(self) -> bool:
        """Whether float32 holds all of the numbers exactly."""
        return self.most <= EXACT

    def rounded(self, exponent: int) -> Format:
        """The numbers rounded to multiples of 2^exponent; the same with a smaller exponent."""
        shift = exponent - self.exponent
        return Format(exponent, rounded(self.low, shift), rounded(self.high, shift))

    def scaled(self, n: int, exponent: int) -> Format:
        """n · 2^exponent times each of the numbers."""
        ends = self.low * n, self.high * n
        return Format(self.exponent + exponent, min(ends), max(ends))


def balanced(exponent: int, bits: int) -> Format:
    """Integers of so many bits, as many below zero as above."""
    most = (1 << (bits - 1)) - 1
    return Format(exponent, -most, most)


def number(value: float) -> Format | None:
    """The format of one number; None if it takes more than 24 bits."""
    if not math.isfinite(value):
        return None
    n, denominator = value.as_integer_ratio()
    exponent = 1 - denominator.bit_length()
    while n and n % 2 == 0:
        n, exponent = n // 2, exponent + 1
    return Format(exponent if n else 0, n, n) if abs(n) <= EXACT else None


def aligned(formats: Sequence[Format]) -> list[Format]:
    """The same numbers with one exponent, the smallest."""
    of_numbers = [of.exponent for of in formats if of.most]  # 0 has any exponent
    exponent = min(of_numbers or [of.exponent for of in formats])
    return [of.rounded(exponent) for of in formats]


def total(formats: Sequence[Format]) -> Format:
    """The format of a sum, and of every partial sum in any order."""
    parts = aligned(formats)
    low, high = sum(min(0, p.low) for p in parts), sum(max(0, p.high) for p in parts)
    return Format(parts[0].exponent, low, high)


def union(formats: Sequence[Format]) -> Format:
    """The format of a value that is one of several."""
    parts = aligned(formats)
    return Format(parts[0].exponent, min(p.low for p in parts), max(p.high for p in parts))


def _product(formats: Sequence[Format]) -> Format:
    a, b = formats
    ends = [m * n for m in (a.low, a.high) for n in (b.low, b.high)]
    return Format(a.exponent + b.exponent, min(ends), max(ends))


def _least(formats: Sequence[Format]) -> Format:
    a, b = aligned(formats)
    return Format(a.exponent, min(a.low, b.low), min(a.high, b.high))


def _largest(formats: Sequence[Format]) -> Format:
    a, b = aligned(formats)
    return Format(a.exponent, max(a.low, b.low), max(a.high, b.high))


def _abs(of: Format) -> Format:
    return replace(
        of, low=0 if of.low <= 0 <= of.high else min(abs(of.low), abs(of.high)), high=of.most
    )


def rounded(n: int, shift: int) -> int:
    """n / 2^shift rounded to a whole number, half to even."""
    if shift <= 0:
        return n << -shift
    half = 1 << (shift - 1)
    return (n + half - 1 + (n >> shift & 1)) >> shift


def _whole(round_to: Callable[[int, int], int]) -> Callable[[Sequence[Format]], Format]:
    """The row of floor or round."""

    def row(formats: Sequence[Format]) -> Format:
        (of,) = formats
        return Format(0, round_to(of.low, -of.exponent), round_to(of.high, -of.exponent))

    return row


ROWS: dict[str, Callable[[Sequence[Format]], Format]] = {
    "add": total,
    "sub": lambda of: total((of[0], of[1].scaled(-1, 0))),
    "neg": lambda of: of[0].scaled(-1, 0),
    "mul": _product,
    "relu": lambda of: replace(of[0], low=max(0, of[0].low), high=max(0, of[0].high)),
    "abs": lambda of: _abs(of[0]),
    "sign": lambda of: Format(0, -1, 1),
    "minimum": _least,
    "maximum": _largest,
    "where": lambda of: union(of[1:]),
    "round": _whole(rounded),
    "floor": _whole(lambda n, shift: n >> shift if shift > 0 else n << -shift),
    "amax": union,
    **dict.fromkeys(COMPARISONS, lambda of: Format(0, 0, 1)),
    # values as they are
    **dict.fromkeys(
        ("stop", "surrogate", "clip_gradient", "split", "reblock", "spread", "cut"),
        lambda of: of[0],
    ),
    "concat": union,
    "place": lambda of: union((of[0], Format(0, 0, 0))),
    "one_hot": lambda of: Format(0, 0, 1),
}


def result(value: Node, formats: Sequence[Format]) -> Format | None:
    """The format of an operation's result that is not rounded; None if it has none.

    Args:
        value: the operation.
        formats: of its arguments.
    """
    if value.op == "const":
        return number(value.number)
    if value.op == "lin":
        coefs = [number(coef) for coef in value.coefs]
        bias = number(value.bias)
        if bias is None or None in coefs:
            return None
        terms = [of.scaled(c.low, c.exponent) for of, c in zip(formats, coefs, strict=True) if c]
        return total([*terms, bias] if bias.most else terms)
    row = ROWS.get(value.op)
    return None if row is None else row(formats)
