"""Time contestants interleaved, in this process and in others, and what single calls take."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from elman.tuning.contest import without_collection
from elman.tuning.timing import MOST_ROUNDS, SAMPLE_S, WARM_UP, Run, sample

LONG_S = 1.0  # a call that takes longer warms up by one
SETTLE_S = (
    60e-3  # threads that wait for work spin before they sleep: libgomp 11 ms, ONNX Runtime 50
)

Sampler = Callable[[int], float]


@dataclass(frozen=True)
class Samples:
    """Seconds per call of one callable.

    Attributes:
        steady: of calls in a row, one sample per round: the k-th samples of all belong together.
        first: of single calls, each right after another callable's: it finds cold caches and
            sleeping threads, as between the other operators of a training step.
    """

    steady: list[float]
    first: list[float]


def time_side_by_side(
    runs: Mapping[str, Run],
    seconds: float,
    rounds: int,
    far: Mapping[str, Sampler] = {},  # never changed
) -> dict[str, Samples]:
    """Time each callable once per round; every second round runs in the opposite order.

    A sample of several calls begins with one that is timed by itself, as a first call. The last of
    a round begins the next one: that call follows its own and is not a first call.

    Args:
        runs: what to time; each must wait for its device.
        seconds: no new round begins after so long (s).
        rounds: at least so many, whatever they take.
        far: those that are timed in processes of their own, by a function that gives the seconds
            per call over so many calls. If there are any, threads get time to fall asleep between
            two samples.

    Returns:
        Samples by name; those that are timed in processes of their own have no first calls.
    """
    calls = {name: _calls_per_sample(run) for name, run in runs.items()}
    samples = {name: Samples([], []) for name in runs}
    order = list(runs.items())
    before = order[-1][0]  # the callable that ran last
    gc.collect()
    with without_collection():
        end = time.perf_counter() + seconds
        for number in range(MOST_ROUNDS):
            if number >= rounds and time.perf_counter() >= end:
                break
            for name, run in order:
                if far:
                    time.sleep(SETTLE_S)
                if name in far:
                    samples[name].steady.append(far[name](calls[name]))
                else:
                    first = sample(run, 1)
                    if before != name:
                        samples[name].first.append(first)
                    several = calls[name] > 1
                    samples[name].steady.append(sample(run, calls[name]) if several else first)
                before = name
            order.reverse()
    return samples


def _calls_per_sample(run: Run) -> int:
    """Warm up, and find how many calls make a sample that the clock can resolve."""
    fastest = math.inf
    for _ in range(WARM_UP):
        fastest = min(fastest, sample(run, 1))
        if fastest > LONG_S:
            break
    return max(1, math.ceil(SAMPLE_S / max(fastest, 1e-9)))
