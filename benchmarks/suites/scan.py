"""Suite ``scan``: how fast are linear recurrences over all steps at once?"""

from __future__ import annotations

from benchmarks.cases import Case, Suite

_MANY = 1_000_000  # values from which a loop over torch ops is timed in minutes, and left out


def _scan(
    T: int, B: int, H: int, n: int = 0, ratio: float | None = None, *, quick: bool = False
) -> Case:
    """Forward and backward of ``elman.linear_scan``: H channels, or H matrices of n x n."""
    looped = T < _MANY
    return Case(
        f"scan {T},{B},{H}" + (f" of {n} x {n}" if n else ""),
        "scan",
        "mingru",
        *(T, B, H, n),
        contestants=(*(("loop",) if looped else ()), "elman", "torch", "jax"),
        baseline="loop" if looped else "torch",
        ratio=ratio,
        quick=quick,
    )


SCAN = Suite(
    "scan",
    "How fast are linear recurrences over all steps at once?",
    (
        Case("bandwidth", "bandwidth", quick=True),
        _scan(10_000, 8, 256, ratio=10.0),
        _scan(100_000, 1, 64),
        _scan(1_000_000, 1, 4),
        _scan(10_000, 1, 8, quick=True),
        _scan(10_000, 8, 64, 2),
        _scan(10_000, 8, 16, 4),
        _scan(10_000, 1, 8, 8),
        _scan(1000, 16, 1, 32),
    ),
    seconds=2.0,
)
