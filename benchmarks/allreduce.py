"""Time model of the gradient all-reduce of data-parallel workers, overlapped with a backward.

A message of n bytes takes latency + n / bandwidth. All-reduce of n bytes by P workers of one device
each:

- ring: 2 (P - 1) messages of n / P bytes (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce
  algorithms for clusters of workstations", JPDC 2009);
- two trees: 2 ceil(log2 P) latencies, and each byte goes up and down once (P. Sanders, J. Speck,
  J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
  Computing 2009).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from elman.errors import InputError

BUCKET = 25 << 20  # bytes that torch's DistributedDataParallel sends at once …
FIRST_BUCKET = 1 << 20  # … and those of its first message


class Link(Protocol):
    """A connection between workers with one device each."""

    def allreduce_s(self, size: float, workers: int) -> float:
        """Seconds of an all-reduce of so many bytes."""
        ...


@dataclass(frozen=True)
class Interconnect:
    """A network.

    Attributes:
        latency_s: of a message (s).
        bytes_per_s: of one worker, or of one node, each direction (bytes/s).
    """

    latency_s: float
    bytes_per_s: float

    def ring_s(self, size: float, workers: int) -> float:
        """Seconds of a ring all-reduce of so many bytes."""
        messages = 2 * (workers - 1)
        return messages * (self.latency_s + size / workers / self.bytes_per_s)

    def trees_s(self, size: float, workers: int) -> float:
        """Seconds of an all-reduce along two trees."""
        if workers == 1:
            return 0.0
        return 2 * (math.ceil(math.log2(workers)) * self.latency_s + size / self.bytes_per_s)

    def allreduce_s(self, size: float, workers: int) -> float:
        """Seconds of the faster of both, as communication libraries choose."""
        return min(self.ring_s(size, workers), self.trees_s(size, workers))


# Bandwidths as their makers state them; latencies of a message between two programs, roughly.
INTERCONNECTS = {
    "infiniband": Interconnect(5e-6, 7e9),  # as of G. Diamos, "Persistent RNNs", 2016, slides
    "ethernet": Interconnect(30e-6, 1.25e9),  # 10 Gb/s
    "ethernet-400g": Interconnect(10e-6, 50e9),
    "nvlink": Interconnect(3e-6, 450e9),  # fourth generation, eight GPUs
}


def find_interconnect(text: str) -> Interconnect:
    """A known interconnect by its name, or any as ``LATENCY_US,GBYTE_S``: ``5,7``. Raises
    InputError: it is neither."""
    if text in INTERCONNECTS:
        return INTERCONNECTS[text]
    latency, _, bandwidth = text.partition(",")
    try:
        link = Interconnect(float(latency) * 1e-6, float(bandwidth) * 1e9)
    except ValueError:
        link = Interconnect(math.nan, math.nan)
    if 0 <= link.latency_s < math.inf and 0 < link.bytes_per_s < math.inf:
        return link
    hint = "--interconnect 5,7 for a latency of 5 µs and 7 GB/s"
    raise InputError(
        f"no interconnect is called {text!r}", hint, there=f"are {', '.join(INTERCONNECTS)}"
    )


def buckets(
    ready: Iterable[tuple[float, float]], size: float = BUCKET, first: float = FIRST_BUCKET
) -> list[tuple[float, float]]:
    """Gather gradients into messages.

    Args:
        ready: when each gradient is there (s), and its bytes; in the order of time.
        size: bytes from which a message is sent; gradients are not cut.
        first: the same of the first one.

    Returns:
        When each message can be sent, and its bytes.
    """
    messages: list[tuple[float, float]] = []
    gathered, at = 0.0, 0.0
    for time, nbytes in ready:
        gathered, at = gathered + nbytes, time
        if gathered >= (size if messages else first):
            messages.append((at, gathered))
            gathered = 0.0
    return [*messages, (at, gathered)] if gathered else messages


def reduction_end_s(messages: Iterable[tuple[float, float]], workers: int, link: Link) -> float:
    """Time at which the last of a sequence of messages is reduced (s)."""
    end = 0.0
    for at, size in messages:
        end = max(end, at) + link.allreduce_s(size, workers)
    return end


def step_s(
    layers: list[float], compute_s: float, workers: int, link: Link, released: bool = True
) -> float:
    """Seconds of a training step of a stack whose layers take equally long.

    A forward is a third of the step, and the backward goes from the last layer to the first.

    Args:
        layers: bytes of each layer's gradients, the first layer first.
        compute_s: of forward and backward (s).
        workers: how many processes.
        link: what connects them.
        released: whether each layer's gradients are sent as soon as they are there; if not, all at
            the end.
    """
    count = len(layers)
    ready = [
        (compute_s * (1 + 2 * (index + 1) / count) / 3 if released else compute_s, size)
        for index, size in enumerate(reversed(layers))
    ]
    return max(compute_s, reduction_end_s(buckets(ready), workers, link))
