"""How a training step of a fixed global minibatch shrinks as workers share it.

Strong scaling (G. Diamos, "Persistent RNNs", 2016, slides): each worker computes its part of the
minibatch, then all sum their gradients. Compute stops shrinking where a minibatch is too small to
use a worker well; the all-reduce never shrinks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from elman.tuning.allreduce import Interconnect, step_s


@dataclass(frozen=True)
class Nodes:
    """What connects devices that share nodes, as many in each.

    A ring inside each node leaves the node's sum of n / D bytes with each of its D devices, these
    are summed over nodes through the node's own link, and a ring inside hands the parts round.

    Attributes:
        devices: of a node.
        inside: what connects the devices of a node.
        across: what connects nodes.
    """

    devices: int
    inside: Interconnect
    across: Interconnect

    def allreduce_s(self, size: float, workers: int) -> float:
        """Seconds of an all-reduce of so many bytes."""
        inside = self.inside.ring_s(size, min(workers, self.devices))
        return inside + self.across.allreduce_s(size, math.ceil(workers / self.devices))


Link = Interconnect | Nodes


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
        sizes = sorted(self.seconds)
        place = bisect_left(sizes, minibatch)
        if place == len(sizes):
            return self.seconds[sizes[-1]] * minibatch / sizes[-1]
        above = sizes[place]
        if place == 0 or above == minibatch:
            return self.seconds[above]
        below = sizes[place - 1]
        share = (minibatch - below) / (above - below)
        return self.seconds[below] * (1 - share) + self.seconds[above] * share


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


def forecast(times: Times, batch: int, workers: int, link: Link) -> Point:
    """A step of a global minibatch by workers with a device each.

    Args:
        times: of one worker.
        batch: the global minibatch.
        workers: how many share it.
        link: what connects them.
    """
    minibatch = math.ceil(batch / workers)
    compute = times.compute_s(minibatch) + (times.sharing_s if workers > 1 else 0.0)
    step = step_s(list(times.gradients), compute, workers, link)
    return Point(workers, minibatch, compute, step, times.compute_s(batch) / step)


def scaled(times: Times, batch: int, most: int, link: Link) -> list[Point]:
    """Steps by 1, 2, 4, … workers, as many as are allowed and have a sample each; of nodes by 1, 2,
    4, … of a node, then by 1, 2, 4, … nodes."""
    devices = link.devices if isinstance(link, Nodes) else 1
    most = min(most, batch)
    counts = [*powers(min(most, devices - 1)), *(devices * n for n in powers(most // devices))]
    return [forecast(times, batch, workers, link) for workers in counts]


def powers(most: int) -> Iterator[int]:
    """1, 2, 4, … up to so many."""
    return (2**power for power in range(most.bit_length()))


def paying(points: list[Point], least: float) -> Point:
    """The last point before the first doubling that saves less than a share of the step."""
    for before, after in pairwise(points):
        if after.step_s > (1 - least) * before.step_s:
            return before
    return points[-1]
