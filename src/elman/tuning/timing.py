"""Time callables interleaved, so that drift of the machine hits all of them alike."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles

from elman.tuning.contest import without_collection

SAMPLE_S = 1e-2  # one sample lasts at least about so long: shorter calls are repeated within it
MOST_ROUNDS = 400
WARM_UP = 3

Run = Callable[[], object]


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles of some samples, and how many there were."""

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
        runs: what to time; each must wait for its device.
        seconds: no new round begins after so long (s), nor a warm-up after half of it.
        rounds: at least so many, whatever they take.
        most: at most so many.
        single: whether a sample is one call, however short.
        agreed: whether time is over in any of the processes that run this together, given whether
            it is in this one: what they run may wait for the others.

    Returns:
        Seconds per call by name, one sample per round: the k-th samples of all belong together.
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
                    runs[name]()  # finds cold what another one left
                samples[name].append(sample(runs[name], calls[name]))
            order.reverse()
    return samples


def ratios(samples: Mapping[str, Sequence[float]], baseline: str) -> dict[str, Quartiles]:
    """Ratios of the baseline's time to each other one's, round by round."""
    base = samples[baseline]
    return {
        name: quartiles([reference / time for reference, time in zip(base, times, strict=True)])
        for name, times in samples.items()
        if name != baseline
    }


def sample(run: Run, calls: int) -> float:
    """Seconds of a call, over so many in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls
