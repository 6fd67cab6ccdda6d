"""How a training step of a fixed global minibatch shrinks as workers share it.

Strong scaling (G. Diamos, "Persistent RNNs", 2016, slides): each worker computes its part of the
minibatch, then all sum their gradients. Compute stops shrinking where a minibatch is too small to
use a worker well; the all-reduce never shrinks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.scaling.links import Link, Memory, Nodes
from elman.plan.allreduce import step_s


@dataclass(frozen=True)
class Times:
    """What a training step takes on one worker, by its minibatch.

    Attributes:
        seconds: of forward and backward, by minibatch.
        gradients: bytes of each layer's gradients, the first layer first.
        sharing_s: what it costs each of several workers with a device of its own to have others,
            sums aside (s): gradients are gathered into messages, and put back.
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
    """One machine whose cores, caches and memory all workers share, as processes.

    Attributes:
        cores: of the machine.
        threads: of each worker.
        memory: through which they sum gradients, after the backward.
        contention: times as long as alone a step takes, by processes that compute at once. Empty:
            they share the cores alone.
    """

    cores: int
    threads: int
    memory: Memory
    contention: Mapping[int, float] = field(default_factory=dict[int, float])

    def crowding(self, workers: int) -> float:
        """Times as long as on cores of their own so many workers take, if they share nothing
        else."""
        return max(1.0, workers * self.threads / self.cores)

    def contended_s(self, alone: float, workers: int) -> float:
        """A step's compute beside those of the other workers (s).

        Beyond the largest count that was measured they share the cores in proportion.

        Args:
            alone: of one worker (s).
        """
        known = [count for count in self.contention if count <= workers]
        if workers == 1 or not known:
            return alone * self.crowding(workers)
        most = max(known)
        return alone * self.contention[most] * self.crowding(workers) / self.crowding(most)

    def step_s(self, layers: Sequence[float], compute_s: float, workers: int) -> float:
        """Seconds of a training step: nothing is summed before the backward has ended.

        Args:
            layers: bytes of each layer's gradients.
            compute_s: of forward and backward (s).
        """
        return compute_s + self.memory.sum_s(sum(layers), workers) * self.crowding(workers)


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


def forecast(times: Times, batch: int, workers: int, by: Link | Machine) -> Point:
    """A step of a global minibatch by so many workers.

    Args:
        times: of one worker.
        batch: the global minibatch.
        workers: how many share it.
        by: what connects them, if each has a device; or the machine that they share.
    """
    minibatch = math.ceil(batch / workers)
    alone, layers = times.compute_s(minibatch), list(times.gradients)
    if isinstance(by, Machine):
        compute = by.contended_s(alone, workers)
        step = by.step_s(layers, compute, workers)
    else:
        compute = alone + (times.sharing_s if workers > 1 else 0.0)
        step = step_s(layers, compute, workers, by)
    return Point(workers, minibatch, compute, step, times.compute_s(batch) / step)


def scaled(times: Times, batch: int, most: int, by: Link | Machine) -> list[Point]:
    """Steps by 1, 2, 4, … workers, as many as are allowed and have a sample each; of nodes by 1, 2,
    4, … of a node, then by 1, 2, 4, … nodes."""
    whole = by.devices if isinstance(by, Nodes) else 1
    most = min(most, batch)
    counts = [*powers(min(most, whole - 1)), *(whole * nodes for nodes in powers(most // whole))]
    return [forecast(times, batch, workers, by) for workers in counts]


def powers(most: int) -> Iterator[int]:
    """1, 2, 4, … up to so many."""
    return (2**power for power in range(most.bit_length()))


def paying(points: list[Point], least: float) -> Point:
    """The last point before the first doubling that saves less than a share of the step."""
    for before, after in pairwise(points):
        if after.step_s > (1 - least) * before.step_s:
            return before
    return points[-1]
