"""Timers of a GPU, and of the host that launches its kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

SAMPLE_MS = 250  # of timing, per contestant and direction
Clock = Callable[[Callable[[], Any]], float]


def clock_of(device: str) -> Clock:
    """Build a timer of a call (s): the median by CUDA events, or one call without a GPU."""
    if device == "cuda":
        from triton.testing import do_bench

        measure: Any = do_bench
        return lambda run: measure(run, rep=SAMPLE_MS, return_mode="median") / 1e3

    def once(run: Callable[[], Any]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return once


def both_ways(
    run: Callable[[], Any], leaves: Sequence[torch.Tensor], clock: Clock
) -> tuple[float, float]:
    """Times of a function's forward, and of its forward and backward (s)."""
    d = torch.randn_like(run().detach())
    return clock(run), clock(lambda: torch.autograd.grad(run(), leaves, d))


def host_time(run: Callable[[], Any], device: str) -> float:
    """Time of the host to launch a call (s); without a GPU, of the whole call."""
    seconds: list[float] = []
    for _ in range(5 if device == "cuda" else 1):
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock_of("cpu")(run))
    return median(seconds)
