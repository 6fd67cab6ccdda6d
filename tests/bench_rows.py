"""Parts of benchmark rows that were not measured."""

from __future__ import annotations

MACHINE = {
    "cpu": "A processor",
    "cores": 2,
    "threads": 2,
    "kernel_isa": "avx2",
    "torch": "2.13.0",
    "blas": "mkl",
    "compiler": "gcc 12",
    "peak_gflops": {"1": 50.0, "2": 100.0},
}


def steady(value: float) -> dict[str, float]:
    """A time or a ratio that was the same in every round."""
    return {"median": value, "q1": value, "q3": value, "samples": 5}
