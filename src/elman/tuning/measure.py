"""Time callables in turn, so that drift of the machine hits all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

_ROUNDS = 25  # at most: the median of 25 is steady enough to tell 5 %


def medians(
    runs: Mapping[str, Callable[[], object]], budget_s: float, rounds: int = _ROUNDS
) -> dict[str, float]:
    """Time each callable once per round until the budget is used up; at least one round.

    The callables must have been warmed up, and must wait for their device.

    Args:
        runs: what to time.
        budget_s: (s) no new round begins after it.
        rounds: at most so many.

    Returns:
        Seconds per call, the median over the rounds.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    clock = time.perf_counter
    end = clock() + budget_s
    for _ in range(rounds):
        for name, run in runs.items():
            start = clock()
            run()
            taken[name].append(clock() - start)
        if clock() >= end:
            break
    return {name: median(seconds) for name, seconds in taken.items()}


def seconds(run: Callable[[], object]) -> float:
    """Time one call (s)."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
