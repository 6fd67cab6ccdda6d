"""Time callables in turn, so that drift of the machine hits all of them alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from statistics import median

_FEW = 4  # rounds before a winner can be clear
_ROUNDS = 25  # at most: the median of 25 is steady enough to tell 5 %


def medians(
    runs: Mapping[str, Callable[[], object]],
    budget_s: float,
    rounds: int = _ROUNDS,
    tie: float = math.inf,
) -> dict[str, float]:
    """Time each callable once per round until the budget is used up or the winner is clear.

    Clear means: after a few rounds, even the slow quarter of the best one's samples is faster than
    the fast quarter of every other's, and medians differ by more than a tie.

    The callables must have been warmed up, and must wait for their device.

    Args:
        runs: what to time.
        budget_s: (s) no new round begins after it; there is at least one.
        rounds: at most so many.
        tie: ratio of medians up to which two are as good as each other.

    Returns:
        Seconds per call, the median over the rounds.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    clock = time.perf_counter
    end = clock() + budget_s
    for done in range(1, rounds + 1):
        for name, run in runs.items():
            start = clock()
            run()
            taken[name].append(clock() - start)
        if clock() >= end or (done >= _FEW and _clear(taken, tie)):
            break
    return {name: median(seconds) for name, seconds in taken.items()}


def _clear(taken: Mapping[str, list[float]], tie: float) -> bool:
    best, *others = sorted(taken.values(), key=median)
    if not others:
        return True
    slow = sorted(best)[(3 * len(best)) // 4]
    return all(
        sorted(other)[len(other) // 4] > slow and median(other) > tie * median(best)
        for other in others
    )


def seconds(run: Callable[[], object]) -> float:
    """Time one call (s)."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
