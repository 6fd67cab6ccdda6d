"""Time callables interleaved, so that drift of the machine affects all of them equally."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles

from elman.tuning.contest import without_collection

SAMPLE_S = 1e-2  # (s) least duration of one sample: shorter calls are repeated within it
MOST_ROUNDS = 400
WARM_UP = 3  # calls of each callable before the first round

Run = Callable[[], object]


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles of some samples, and their number."""

    median: float
    q1: float
    q3: float
    samples: int


def quartiles(samples: Sequence[float]) -> Quartiles:
    """The quartiles of at least one sample."""
    if len(samples) == 1:
        return Quartiles(samples[0], samples[0], samples[0], 1)
    q1, median, q3 = quantiles(samples, n=4, method="inclusive")
    return Quartiles(median, q1, q3, len(samples))


def time_interleaved(
    runs: Mapping[str, Run],
    seconds: float,
    rounds: int,
    most: int = MOST_ROUNDS,
    single: bool = False,
    agreed: Callable[[bool], bool] = lambda over: over,
) -> dict[str, list[float]]:
    """Time each callable once per round; every second round runs in the opposite order.

    Args:
        runs: the callables; each must wait for its device.
        seconds: no round begins after this time (s), no warm-up after half of it.
        rounds: least number of rounds, whatever they take.
        most: largest number of rounds.
        single: whether a sample is one call, however short.
        agreed: whether time is over in any of the processes that time together, from whether it is
            over in this one; their calls may wait for each other, so all must stop together.

    Returns:
        Seconds per call by name, one sample per round: the k-th samples of all are of one round.
    """
    began, fastest = time.perf_counter(), dict.fromkeys(runs, math.inf)
    for number in range(WARM_UP):
        if number and agreed(time.perf_counter() - began > seconds / 2):
            break
        for name, run in runs.items():
            fastest[name] = min(fastest[name], sample(run, 1))
    least_s = 0.0 if single else SAMPLE_S
    calls = {name: max(1, math.ceil(least_s / max(s, 1e-9))) for name, s in fastest.items()}
    samples: dict[str, list[float]] = {name: [] for name in runs}
    order = [*runs]
    gc.collect()
    with without_collection():
        end = time.perf_counter() + seconds
        for number in range(most):
            if number >= rounds and agreed(time.perf_counter() >= end):
                break
            for name in order:
                if calls[name] > 1:
                    runs[name]()  # warms the caches, which another callable has used
                samples[name].append(sample(runs[name], calls[name]))
            order.reverse()
    return samples


def ratios(samples: Mapping[str, Sequence[float]], baseline: str) -> dict[str, Quartiles]:
    """Ratios of the baseline's time to every other callable's, round by round."""
    base = samples[baseline]
    return {
        name: quartiles([reference / time for reference, time in zip(base, times, strict=True)])
        for name, times in samples.items()
        if name != baseline
    }


def sample(run: Run, calls: int) -> float:
    """Seconds per call, over ``calls`` calls in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
