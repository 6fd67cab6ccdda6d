"""Counter-based random numbers: the same on every engine, in every dtype, in any order.

Each row (one step of one sample) has a key of 48 random bits, two numbers of 24 bits, which float32
holds exactly. A draw of that row mixes the key with its stream (which draw of the formula, and
which gate block of it) and the index of the unit, and keeps 24 bits: u = k / 2^24 in [0, 1), the
same number in float32 and float64. Nothing is kept between steps: a backward draws again.

Salmon, Moraes, Dror & Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", describe such
counter-based generators. The mixing function is Wellons' ``lowbias32`` (hash-prospector, in the
public domain), a permutation of 32 bits. It stands twice, each time after one half of the key has
been added to its argument (Even & Mansour 1997), so that rows with similar keys draw apart.
"""

from __future__ import annotations

BITS = 24  # of each half of a key, and of a number drawn
SCALE = 2.0**-BITS
FIRST, SECOND = 0x7FEB352D, 0x846CA68B  # lowbias32's factors
SHIFTS = (16, 15, 16)
_WORD = 0xFFFFFFFF


def mixed(x: int) -> int:
    """``lowbias32`` of a number of 32 bits; of an array of such numbers in wider integers."""
    x = x ^ (x >> SHIFTS[0])
    x = (x * FIRST) & _WORD
    x = x ^ (x >> SHIFTS[1])
    x = (x * SECOND) & _WORD
    return x ^ (x >> SHIFTS[2])


def stream(number: int, gate_block: int) -> int:
    """Stream number (32 bits) of a gate block of a draw in a formula."""
    return mixed(mixed(number + 1) ^ gate_block)


def drawn(high: int, low: int, unit: int, of: int) -> int:
    """Random bits (24) of one unit; arguments are numbers, or arrays of 64-bit integers.

    Args:
        high, low: the key, 24 bits each; more (numbers of trials, which are not keys) are cut off.
        unit: its index in the gate block.
        of: the :func:`stream`.
    """
    high, low = high & _WORD, low & _WORD
    first = low ^ ((high << BITS) & _WORD)
    second = (high >> 8) ^ of
    return mixed(mixed(unit ^ first) ^ second) >> 8
