"""How a training step of a fixed global minibatch shrinks as workers share it.

Strong scaling (G. Diamos, "Persistent RNNs", 2016, slides): each worker computes its part of the
minibatch, then all sum their gradients. Compute stops shrinking where a minibatch is too small to
use a worker well; the all-reduce never shrinks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from elman.plan.allreduce import Interconnect, allreduce_s, buckets, step_s


@dataclass(frozen=True)
class Times:
    """What a training step takes on one worker, by its minibatch.

    Attributes:
        seconds: of forward and backward, by minibatch.
        gradients: bytes of each layer's gradients, the first layer first.
        sharing_s: what it costs each of several workers to have others, sums aside (s): gradients
            are gathered into messages, and put back.
    """

    seconds: Mapping[int, float]
    gradients: tuple[float, ...]
    sharing_s: float = 0.0

    def compute_s(self, minibatch: int) -> float:
        """Seconds at any minibatch: in proportion above the largest measured, on a line between
        two, and below the smallest what that takes."""
        known = sorted(self.seconds)
        place = bisect_left(known, minibatch)
        if place == len(known):
            return self.seconds[known[-1]] * minibatch / known[-1]
        above = known[place]
        if place == 0 or above == minibatch:
            return self.seconds[above]
        below = known[place - 1]
        share = (minibatch - below) / (above - below)
        return self.seconds[below] * (1 - share) + self.seconds[above] * share


@dataclass(frozen=True)
class Machine:
    """One machine that all workers share, as processes; workers with a device each need none.

    Attributes:
        cores: of the machine.
        threads: of each worker.
        contention: times as long as alone a step takes, by processes that compute at once, what
            sharing costs included and sums aside: they share caches and memory too. Empty: they
            share the cores alone.
    """

    cores: int
    threads: int
    contention: Mapping[int, float] = field(default_factory=dict[int, float])

    def used(self, workers: int) -> float:
        """How many times over so many workers want the cores."""
        return workers * self.threads / self.cores

    def contended_s(self, alone: float, sharing: float, workers: int) -> float:
        """A step's compute beside those of the other workers (s).

        Beyond the largest count that was measured they share the cores in proportion.

        Args:
            alone: of one worker (s).
            sharing: what it costs to have others (s), where that was not measured with them.
        """
        known = [count for count in self.contention if count <= workers]
        if workers == 1 or not known:
            return (alone + sharing) * max(1.0, self.used(workers))
        most = max(known)
        more = max(1.0, self.used(workers)) / max(1.0, self.used(most))
        return alone * self.contention[most] * more


@dataclass(frozen=True)
class Point:
    """A training step by so many workers.

    Attributes:
        workers: how many.
        minibatch: of each; the largest where they differ.
        compute_s: forward, backward and what sharing costs beside sums (s).
        step_s: until all gradients are summed (s).
        speedup: times as fast as one worker with the whole minibatch.
    """

    workers: int
    minibatch: int
    compute_s: float
    step_s: float
    speedup: float

    @property
    def exposed_s(self) -> float:
        """What of the all-reduce no backward hides (s)."""
        return self.step_s - self.compute_s

    @property
    def efficiency(self) -> float:
        """Speed-up per worker."""
        return self.speedup / self.workers


def forecast(
    times: Times, batch: int, workers: int, link: Interconnect, machine: Machine | None = None
) -> Point:
    """A step of a global minibatch by so many workers.

    Args:
        times: of one worker.
        batch: the global minibatch.
        workers: how many share it.
        link: what connects them.
        machine: that they share; then each takes longer where cores are too few, and what sums
            gradients takes cores too.
    """
    minibatch = math.ceil(batch / workers)
    alone, layers = times.compute_s(minibatch), list(times.gradients)
    sharing = times.sharing_s if workers > 1 else 0.0
    if machine is None:
        compute, least = alone + sharing, 0.0
    else:
        compute = machine.contended_s(alone, sharing, workers)
        least = compute * min(1.0, machine.used(workers))
        least += workers * taken_s(layers, workers, link) / machine.cores
    step = max(step_s(layers, compute, workers, link), least)
    return Point(workers, minibatch, compute, step, times.compute_s(batch) / step)


def taken_s(layers: list[float], workers: int, link: Interconnect) -> float:
    """Seconds for which an all-reduce takes a core of each worker."""
    messages = buckets((0.0, size) for size in reversed(layers))
    return link.busy * sum(allreduce_s(size, workers, link) for _, size in messages)


def scaled(
    times: Times, batch: int, most: int, link: Interconnect, machine: Machine | None = None
) -> list[Point]:
    """Steps by 1, 2, 4, … workers, as many as are allowed and have a sample each."""
    counts = (2**power for power in range(min(most, batch).bit_length()))
    return [forecast(times, batch, workers, link, machine) for workers in counts]


def paying(points: list[Point], least: float) -> Point:
    """The last point before the first doubling that saves less than a share of the step."""
    for before, after in pairwise(points):
        if after.step_s > (1 - least) * before.step_s:
            return before
    return points[-1]
