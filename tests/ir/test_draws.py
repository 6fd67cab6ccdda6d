"""Numbers drawn from keys: known values, and none of what randomness has not."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from elman.ir.draws import BITS, SCALE, drawn, mixed, stream

ROWS, UNITS = 2048, 128
HALF = 1 << BITS


def keys(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Keys [rows, 1] as a module draws them."""
    high, low = np.random.default_rng(seed).integers(0, HALF, (2, rows, 1))
    return high, low


def numbers(number: int = 0, gate_block: int = 0, seed: int = 0) -> np.ndarray:
    """u [rows, units] in [0, 1)."""
    high, low = keys(ROWS, seed)
    return drawn(high, low, np.arange(UNITS), stream(number, gate_block)) * SCALE  # type: ignore[arg-type]


def normal(statistic: float, what: str) -> None:
    """A statistic that is standard normal if numbers are independent; one in 10^8 is larger."""
    assert abs(statistic) < 5.8, f"{what}: {statistic:.2f} standard deviations"


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Of two arrays of uniform numbers, as a standard normal statistic."""
    return float(((a - 0.5) * (b - 0.5)).mean() * 12.0 * math.sqrt(a.size))


def test_known_values():
    """What a seed gives stays so: lowbias32 as its author writes it, and draws by the formula."""
    assert [mixed(x) for x in (0, 1, 0xFFFFFFFF)] == [lowbias32(x) for x in (0, 1, 0xFFFFFFFF)]
    key = (0xABCDEF | 0x56 << 24, 0x1234)
    of = lowbias32(lowbias32(3) ^ 1)
    words = [lowbias32(lowbias32(unit ^ key[0]) ^ key[1] ^ of) >> 8 for unit in range(3)]
    assert [drawn(0x123456, 0xABCDEF, unit, stream(2, 1)) for unit in range(3)] == words
    assert words == [10350766, 11625170, 14014672]


def lowbias32(x: int) -> int:
    """In C: x ^= x >> 16; x *= 0x7feb352d; x ^= x >> 15; x *= 0x846ca68b; x ^= x >> 16."""
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def test_all_24_bits_are_fair():
    """Every bit is 1 half of the time, and all pairs of bits are independent (chi-square)."""
    high, low = keys(ROWS)
    words = drawn(high, low, np.arange(UNITS), stream(0, 0)).ravel()  # type: ignore[union-attr,arg-type]
    bits = np.stack([(words >> k) & 1 for k in range(BITS)]).astype(np.float64)
    off = (bits.mean(1) - 0.5) * 2.0 * math.sqrt(words.size)
    normal((float((off**2).sum()) - BITS) / math.sqrt(2.0 * BITS), "bits")
    pairs = np.corrcoef(bits)[np.triu_indices(BITS, 1)] * math.sqrt(words.size)
    normal((float((pairs**2).sum()) - pairs.size) / math.sqrt(2.0 * pairs.size), "pairs of bits")


@pytest.mark.parametrize(("number", "gate_block"), [(0, 0), (1, 0), (0, 3), (17, 2)])
def test_numbers_are_uniform(number, gate_block):
    """Mean, variance, and a histogram of 1000 bins, of all; the mean of each unit and row."""
    u = numbers(number, gate_block)
    normal((u.mean() - 0.5) * math.sqrt(12.0 * u.size), "mean")
    normal((u.var() - 1.0 / 12.0) * math.sqrt(180.0 * u.size), "variance")
    counts = np.histogram(u, 1000, (0.0, 1.0))[0]
    expected = u.size / 1000
    chi = float(((counts - expected) ** 2 / expected).sum())
    normal((chi - 999.0) / math.sqrt(2.0 * 999.0), "histogram")
    for axis, what in ((0, "units"), (1, "rows")):
        means = (u.mean(axis) - 0.5) * math.sqrt(12.0 * u.shape[axis])
        normal((float((means**2).sum()) - means.size) / math.sqrt(2.0 * means.size), what)


def test_units_draws_gate_blocks_and_rows_are_independent():
    """Correlations at lags of units and rows, between draws, and between gate blocks."""
    u = numbers()
    for lag in (1, 2, 3, 4, 8, 16, 64):
        normal(correlation(u[:, lag:], u[:, :-lag]), f"units {lag} apart")
        normal(correlation(u[lag:], u[:-lag]), f"rows {lag} apart")
    places = list(itertools.product(range(4), range(4)))
    others = {place: numbers(*place) for place in places}
    for a, b in itertools.combinations(places, 2):
        normal(correlation(others[a], others[b]), f"draws {a} and {b}")
        normal(correlation(others[a][:, 1:], others[b][:, :-1]), f"draws {a} and {b}, shifted")


@pytest.mark.parametrize("bit", [0, 1, 7, 8, 12, 22, 23])
@pytest.mark.parametrize("half", [0, 1])
def test_keys_that_differ_by_a_bit_draw_apart(half, bit):
    """Half of all bits of a number change, whichever bit of the key does."""
    high, low = keys(ROWS)
    other = [high, low]
    other[half] = other[half] ^ (1 << bit)
    units, of = np.arange(UNITS), stream(0, 0)
    changed = drawn(high, low, units, of) ^ drawn(*other, units, of)  # type: ignore[operator,arg-type]
    each = np.stack([(changed >> k) & 1 for k in range(BITS)]).mean((1, 2))
    assert np.abs(each - 0.5).max() < 0.02, each
    same = numbers() - drawn(*other, units, of) * SCALE  # type: ignore[arg-type]
    assert (same == 0.0).mean() < 1e-4


def test_masks_of_rows_are_not_permutations_of_each_other():
    """The least of a row's numbers is at each unit equally often, and its value is that of so many
    independent numbers."""
    u = numbers(3, 1, seed=5)
    counts = np.bincount(u.argmin(1), minlength=UNITS)
    expected = ROWS / UNITS
    chi = float(((counts - expected) ** 2 / expected).sum())
    normal((chi - (UNITS - 1)) / math.sqrt(2.0 * (UNITS - 1)), "place of the least")
    least = 1.0 - (1.0 - u.min(1)) ** UNITS  # uniform
    normal((least.mean() - 0.5) * math.sqrt(12.0 * ROWS), "least")
