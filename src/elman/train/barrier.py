"""A wait of the processes of one machine for one another.

The smallest message of gloo's takes a thread of its own there and back: several times the
processor time of a byte in a pipe.
"""

from __future__ import annotations

import math
import os
import select
import time
from contextlib import ExitStack, suppress

import torch
import torch.distributed as dist

MOST = 256  # processes: a byte says which
_AT_ONCE = 4096  # bytes that are read


class Barrier:
    """Pipes, one to each process, in which the others leave a byte each time.

    Args:
        rank: of this process.
        own: where it reads.
        others: where it writes, by rank.
        ends: descriptors that are readable when a process has ended, by rank.
        held: closes all of these.
        timeout: of a wait (s).
    """

    def __init__(
        self,
        rank: int,
        own: int,
        others: dict[int, int],
        ends: dict[int, int],
        held: ExitStack,
        timeout: float,
    ) -> None:
        self._name, self._own, self._others = bytes((rank,)), own, others
        self._ranks = {end: rank for rank, end in ends.items()}
        self._held, self._timeout = held, timeout
        self._heard = dict.fromkeys(others, 0)
        self._ended: set[int] = set()
        self._turn = 0
        self._poll = select.poll()
        for descriptor in (own, *self._ranks):
            self._poll.register(descriptor, select.POLLIN)

    def __del__(self) -> None:
        self._held.close()

    def wait(self) -> None:
        """Return when all processes have come here as often as this one.

        Raises:
            DistError: one has ended, or not come in time.
        """
        self._turn += 1
        for rank, other in self._others.items():
            try:
                os.write(other, self._name)
            except BrokenPipeError as error:
                raise _gone(rank) from error
        until = time.monotonic() + self._timeout
        while missing := [rank for rank, turn in self._heard.items() if turn < self._turn]:
            if gone := self._ended.intersection(missing):  # what it left before is taken in
                raise _gone(min(gone))
            self._listen(missing, until)

    def _listen(self, missing: list[int], until: float) -> None:
        """Take in what others have left, as soon as there is something."""
        left = max(0.0, until - time.monotonic())
        events = [descriptor for descriptor, _ in self._poll.poll(math.ceil(left * 1e3))]
        if not events:
            told = f"process {missing[0]} of this machine has not come within {self._timeout:g} s"
            raise dist.DistError(told)
        with suppress(BlockingIOError):  # always: who ended may have left a byte since the poll
            for rank in os.read(self._own, _AT_ONCE):
                self._heard[rank] += 1
        for end in set(events) - {self._own}:
            self._poll.unregister(end)
            self._ended.add(self._ranks[end])


def _gone(rank: int) -> dist.DistError:
    return dist.DistError(f"process {rank} of this machine has ended")


def barrier(timeout: float) -> Barrier | None:
    """Meet the other processes of the group; all of them call it.

    Args:
        timeout: of a wait (s).

    Returns:
        None, in all processes, if one cannot have pipes or not see another's.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    told: list[tuple[int, int, int]] = [(0, 0, 0)] * world
    with ExitStack() as held:
        try:
            own, mine = os.pipe()
            held.callback(os.close, own)
            held.callback(os.close, mine)
            os.set_blocking(own, False)
            place = (os.getpid(), mine, os.fstat(mine).st_ino)
        except OSError:
            own, place = -1, (-1, -1, -1)
        dist.all_gather_object(told, place)
        others: dict[int, int] = {}
        ends: dict[int, int] = {}
        try:
            for other, (process, pipe, number) in enumerate(told):
                if other == rank:
                    continue
                others[other] = os.open(f"/proc/{process}/fd/{pipe}", os.O_WRONLY | os.O_CLOEXEC)
                held.callback(os.close, others[other])
                ends[other] = os.pidfd_open(process)
                held.callback(os.close, ends[other])
                if os.fstat(others[other]).st_ino != number:  # another namespace of processes
                    raise OSError
            usual = world <= MOST and own >= 0
        except (OSError, AttributeError):  # AttributeError: no pidfd_open here
            usual = False
        if all_of(usual):
            return Barrier(rank, own, others, ends, held.pop_all(), timeout)
    return None


def all_of(usual: bool) -> bool:
    """Whether something is so in all processes of the group; all of them ask."""
    missing = torch.tensor([float(not usual)])
    dist.all_reduce(missing)
    return not missing.item()
