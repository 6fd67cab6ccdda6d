"""Means over the processes of one machine, through memory that all of them see.

A message through the loopback is copied into the kernel of the system and out of it by a thread of
gloo's; a sum over memory reads each process's values once.
"""

from __future__ import annotations

import os
import secrets
from mmap import mmap

import torch
import torch.distributed as dist
from torch import Tensor

from elman.train.barrier import Barrier, all_of, barrier

PAGE_BYTES = 4096
TOKEN_BYTES = 16


class SharedMemory:
    """What each process writes, all can read; two segments of each process, used alternately.

    For its k-th mean a process writes to its segment k % 2, waits until all have written, and adds
    the segments of all, in the order of their ranks: so all have the same bits. One wait is enough:
    who writes for mean k + 2 over the values of mean k has come through the wait of mean k + 1,
    which every process enters after it has added those of mean k.

    The wait is a :class:`Barrier`; where processes cannot have one, the smallest message that
    torch's group sends. Locks of the system around either order memory as between threads. A
    process that is gone or late is the error of a collective operation either way. Memory is
    nowhere in a folder: it is gone with the last process that holds it, however that ends.

    Args:
        timeout: of a wait (s); messages have that of their group.

    Attributes:
        held: the memory of each process, by rank; none before the first mean.
        bytes_each: of one segment.
        turn: which of the two is next.
        refused: whether some process could not have such memory, or not see another's.
        barrier: where processes wait for one another; None before the first mean, and where they
            send messages for it.
    """

    def __init__(self, timeout: float = 300.0) -> None:
        self.timeout = timeout
        self.barrier: Barrier | None = None
        self.held: list[mmap] = []
        self.bytes_each = 0
        self.turn = 0
        self.refused = False
        self.ready = torch.zeros(1)

    def mean(self, parts: list[Tensor], out: Tensor | None = None) -> Tensor | None:
        """Join tensors of one dtype and return their mean over all processes, [N].

        All processes of a group call it, with tensors of the same sizes.

        Args:
            out [N]: where it goes; None: to a new tensor.

        Returns:
            None, in all processes, if they share no memory.
        """
        dtype, count = parts[0].dtype, sum(part.numel() for part in parts)
        if not count or not self.holds(count * dtype.itemsize):
            return None
        offset, self.turn = self.turn * self.bytes_each, 1 - self.turn
        segments = [
            torch.frombuffer(memory, dtype=dtype, count=count, offset=offset)
            for memory in self.held
        ]
        torch.cat([part.flatten() for part in parts], out=segments[dist.get_rank()])
        if self.barrier is None:
            dist.all_reduce(self.ready)
        else:
            self.barrier.wait()
        means = torch.add(segments[0], segments[1], out=out)
        for segment in segments[2:]:
            means += segment
        return means.mul_(1 / len(segments))

    def holds(self, size: int) -> bool:
        """Whether segments have so many bytes; they are made, or made anew, if not."""
        if size > self.bytes_each and not self.refused:
            first, self.bytes_each = not self.held, -(-size // PAGE_BYTES) * PAGE_BYTES
            self.held = shared(2 * self.bytes_each)
            self.refused = not self.held
            if first and self.held:
                self.barrier = barrier(self.timeout)
        return not self.refused


def shared(size: int) -> list[mmap]:
    """Make memory of so many bytes in each process of the group, and see that of all others.

    Returns:
        The memory of each process, by rank; none, in all processes, if one of them could not.
    """
    told: list[tuple[str, bytes]] = [("", b"")] * dist.get_world_size()
    token = secrets.token_bytes(TOKEN_BYTES)
    file = made(size, token)
    try:
        dist.all_gather_object(told, (f"/proc/{os.getpid()}/fd/{file}", token))
        held = [] if file is None else seen(told, size)
        everywhere = all_of(bool(held))
    finally:
        if file is not None:
            os.close(file)
    return held if everywhere else []


def made(size: int, token: bytes) -> int | None:
    """Open memory of so many bytes that begins with a token; None if there is no such memory."""
    if not hasattr(os, "memfd_create"):
        return None
    file = None
    try:
        file = os.memfd_create("elman")
        os.posix_fallocate(file, 0, size)  # now, not at the first write, which would be a SIGBUS
        os.pwrite(file, token, 0)
    except OSError:
        if file is not None:
            os.close(file)
        return None
    return file


def seen(told: list[tuple[str, bytes]], size: int) -> list[mmap]:
    """Map the memory of all processes; none if one's is not to be seen.

    Args:
        told: where each process says that its memory is, and the token that it begins with: in
            another namespace of processes there may be something else.
    """
    held = []
    for path, token in told:
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return []
        try:
            held.append(mmap(file, size))
        except (OSError, ValueError):  # no room, too short
            return []
        finally:
            os.close(file)
        if held[-1][:TOKEN_BYTES] != token:
            return []
    return held
