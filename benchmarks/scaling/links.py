"""What workers of several nodes, and processes of one machine, sum their gradients through.

Nodes of D devices: a ring inside each node leaves the node's sum of n / D bytes with each device,
these are summed over nodes through the node's own link, and a ring inside the node hands the parts
round.

Processes of one machine write n bytes each where all can read them, wait, and add n bytes of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from elman.plan.allreduce import Interconnect


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

    def allreduce_s(self, size: float, workers: int) -> float:
        """Seconds of an all-reduce of so many bytes."""
        inside = self.inside.ring_s(size, min(workers, self.devices))
        return inside + self.across.allreduce_s(size, math.ceil(workers / self.devices))


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
