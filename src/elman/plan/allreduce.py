"""How long data-parallel workers take to sum their gradients, and how much of it a backward hides.

A message of n bytes takes latency + n / bandwidth. All-reduce of n bytes by P workers of one device
each:

- ring: 2 (P - 1) messages of n / P bytes (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce
  algorithms for clusters of workstations", JPDC 2009);
- two trees: 2 ceil(log2 P) latencies, and each byte goes up and down once (P. Sanders, J. Speck,
  J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
  Computing 2009).

Nodes of D devices: a ring inside each node leaves the node's sum of n / D bytes with each device,
these are summed over nodes by one of the above, through the node's own link, and a ring inside the
node hands the parts round.

Processes of one machine write n bytes each where all can read them, wait, and add n bytes of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from elman.errors import InputError, diagnostic

BUCKET = 25 << 20  # bytes that torch's DistributedDataParallel sends at once …
FIRST_BUCKET = 1 << 20  # … and those of its first message


@dataclass(frozen=True)
class Interconnect:
    """What connects workers.

    Attributes:
        latency_s: of a message (s).
        bytes_per_s: of one worker, or of one node, each direction (bytes/s).
    """

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Nodes:
    """What connects devices that share nodes, as many in each.

    Attributes:
        devices: of a node.
        inside: what connects the devices of a node.
        across: what connects nodes.
    """

    devices: int
    inside: Interconnect
    across: Interconnect


Link = Interconnect | Nodes


@dataclass(frozen=True)
class Memory:
    """What processes of one machine write gradients to, and read them from.

    Attributes:
        wait_s: of two processes for each other (s).
        bytes_per_s: that a process writes and reads on a core of its own (bytes/s).
    """

    wait_s: float
    bytes_per_s: float

    def sum_s(self, size: float, workers: int) -> float:
        """Seconds of a sum of so many bytes by processes with a core each."""
        if workers == 1:
            return 0.0
        moved = (workers + 1) * size / self.bytes_per_s
        return math.ceil(math.log2(workers)) * self.wait_s + moved


# Bandwidths as their makers state them; latencies of a message between two programs, roughly.
INTERCONNECTS = {
    "infiniband": Interconnect(5e-6, 7e9),  # as of G. Diamos, "Persistent RNNs", 2016, slides
    "ethernet": Interconnect(30e-6, 1.25e9),  # 10 Gb/s
    "ethernet-400g": Interconnect(10e-6, 50e9),
    "nvlink": Interconnect(3e-6, 450e9),  # fourth generation, eight GPUs
}


def find_interconnect(text: str) -> Interconnect:
    """A known interconnect by its name, or any as ``LATENCY_US,GBYTE_S``: ``5,7``.

    Raises:
        InputError: it is neither.
    """
    if text in INTERCONNECTS:
        return INTERCONNECTS[text]
    latency, _, bandwidth = text.partition(",")
    try:
        link = Interconnect(float(latency) * 1e-6, float(bandwidth) * 1e9)
    except ValueError:
        link = Interconnect(math.nan, math.nan)
    if 0 <= link.latency_s < math.inf and 0 < link.bytes_per_s < math.inf:
        return link
    details = [("there", f"are {', '.join(INTERCONNECTS)}")]
    hint = "--interconnect 5,7 for a latency of 5 µs and 7 GB/s"
    raise InputError(diagnostic(f"no interconnect is called {text!r}", details, hint))


def ring_s(size: float, workers: int, link: Interconnect) -> float:
    """Seconds of a ring all-reduce of so many bytes."""
    messages = 2 * (workers - 1)
    return messages * (link.latency_s + size / workers / link.bytes_per_s)


def trees_s(size: float, workers: int, link: Interconnect) -> float:
    """Seconds of an all-reduce along two trees."""
    if workers == 1:
        return 0.0
    return 2 * (math.ceil(math.log2(workers)) * link.latency_s + size / link.bytes_per_s)


def allreduce_s(size: float, workers: int, link: Link) -> float:
    """Seconds of the faster of both, as communication libraries choose; of nodes see above."""
    if isinstance(link, Nodes):
        inside = ring_s(size, min(workers, link.devices), link.inside)
        return inside + allreduce_s(size, math.ceil(workers / link.devices), link.across)
    return min(ring_s(size, workers, link), trees_s(size, workers, link))


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
    made: list[tuple[float, float]] = []
    gathered, at = 0.0, 0.0
    for time, more in ready:
        gathered, at = gathered + more, time
        if gathered >= (size if made else first):
            made.append((at, gathered))
            gathered = 0.0
    return [*made, (at, gathered)] if gathered else made


def done_s(messages: Iterable[tuple[float, float]], workers: int, link: Link) -> float:
    """When the last of some messages is summed, sent one after another as each can be (s)."""
    end = 0.0
    for at, size in messages:
        end = max(end, at) + allreduce_s(size, workers, link)
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
        (compute_s * (1 + 2 * (done + 1) / count) / 3 if released else compute_s, size)
        for done, size in enumerate(reversed(layers))
    ]
    return max(compute_s, done_s(buckets(ready), workers, link))
