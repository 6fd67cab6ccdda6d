"""Waits of processes of one machine: who is late, gone, or not to be met."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest
import torch

from elman.train.barrier import Barrier
from elman.train.connection import of_connection

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
    pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no descriptor of a process"),
]


class Other:
    """A process that waits for its end, and the barrier that this one has with it."""

    def __init__(self, timeout: float) -> None:
        command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE)
        own, self.says = os.pipe()
        self.hears, other = os.pipe()
        os.set_blocking(own, False)
        end = os.pidfd_open(self.process.pid)
        with ExitStack() as held:
            for descriptor in (own, other, end):
                held.callback(os.close, descriptor)
            self.barrier = Barrier(0, own, {1: other}, {1: end}, held.pop_all(), timeout)

    def come(self) -> None:
        """What the other process leaves."""
        os.write(self.says, b"\1")

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def meet():
    """A barrier with a process: meet(timeout)."""
    made: list[Other] = []

    def one(timeout: float = 20.0) -> Other:
        made.append(Other(timeout))
        return made[-1]

    yield one
    for other in made:
        other.end()
        for descriptor in (other.says, other.hears):
            with suppress(OSError):  # the test did
                os.close(descriptor)


def test_each_leaves_a_byte_a_turn(meet):
    """Also where the other one is a turn ahead."""
    other = meet()
    other.come(), other.come()
    other.barrier.wait()
    other.barrier.wait()
    assert os.read(other.hears, 10) == b"\0\0"


def test_who_ended_after_its_turn_is_told_in_the_next(meet):
    """What it left before counts; then one line, which the run knows as an error of the
    connection."""
    other = meet()
    other.come()
    other.end()
    other.barrier.wait()
    with pytest.raises(torch.distributed.DistError, match=r"process 1 .* has ended") as caught:
        other.barrier.wait()
    assert of_connection(caught.value)


def test_who_ends_meanwhile(meet):
    """The wait ends with it, not with the timeout; so it does if nobody reads any more."""
    other = meet()
    other.process.kill()
    with pytest.raises(torch.distributed.DistError, match="has ended"):
        other.barrier.wait()
    other = meet()
    os.close(other.hears)
    with pytest.raises(torch.distributed.DistError, match="has ended"):
        other.barrier.wait()


def test_what_is_left_between_poll_and_end_counts(meet, monkeypatch):
    """Who leaves its byte and ends while this process looks is seen as ended alone."""
    other = meet()
    plain = other.barrier._poll

    class Poll:
        unregister = staticmethod(plain.unregister)

        def poll(self, left):
            other.come()
            other.end()
            return [(next(iter(other.barrier._ranks)), 1)]

    other.barrier._poll = Poll()
    other.barrier.wait()


def test_who_is_late(meet):
    """It is told who, and after how long."""
    other = meet(0.01)
    with pytest.raises(torch.distributed.DistError, match=r"process 1 .* not come within 0\.01 s"):
        other.barrier.wait()


def test_descriptors_are_closed(meet):
    """With the barrier."""
    other = meet()
    before = len(os.listdir("/proc/self/fd"))
    other.barrier = None
    assert len(os.listdir("/proc/self/fd")) == before - 3
