"""Suite ``scan``: how fast are linear recurrences over all steps at once?"""

from __future__ import annotations

from typing import Any

from benchmarks.cases import OURS, Case, Suite, sized
from benchmarks.workloads.scans import BANDWIDTH
from benchmarks.workloads.scans import SCAN as WORK


def _scan(sizes: str, n: int = 0, looped: bool = True, **fields: Any) -> Case:
    """Forward and backward of ``elman.linear_scan``: H channels, or H matrices of n x n; beside a
    loop over torch ops, unless that takes minutes."""
    contestants = ("loop", OURS, "torch", "jax")[not looped :]
    name = f"scan {sizes}" + (f" of {n} x {n}" if n else "")
    fields |= {} if looped else {"baseline": "torch"}
    return sized(name, WORK, *contestants, cell="mingru", I=n, **fields)


SCAN = Suite(
    "scan",
    "How fast are linear recurrences over all steps at once?",
    (
        Case("bandwidth", BANDWIDTH, quick=True),
        _scan("10000,8,256", ratio=10.0),
        _scan("100000,1,64"),
        _scan("1000000,1,4", looped=False),
        _scan("10000,1,8", quick=True),
        _scan("10000,8,64", 2),
        _scan("10000,8,16", 4),
        _scan("10000,1,8", 8),
        _scan("1000,16,1", 32),
    ),
    seconds=2.0,
)
