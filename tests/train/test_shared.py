"""Means through memory that processes share: the bits, the turns, and who has none."""

from __future__ import annotations

import errno
import mmap
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from elman.train import averaging, shared
from elman.train.shared import SharedMemory
from scripts import PATIENCE_S, begin

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="no memory without a file"),
]


class Group:
    """A process group whose processes are threads of this one."""

    def __init__(self, world: int) -> None:
        self.world, self.here = world, threading.local()
        self.barrier = threading.Barrier(world, timeout=100)
        self.said: list = [None] * world
        self.sums = 0

    def get_rank(self) -> int:
        return self.here.rank

    def get_world_size(self) -> int:
        return self.world

    def all_gather_object(self, told: list, own: object) -> None:
        self.said[self.here.rank] = own
        self.barrier.wait()
        told[:] = self.said
        self.barrier.wait()

    def all_reduce(self, values: torch.Tensor) -> None:
        told: list = [None] * self.world
        self.all_gather_object(told, values.clone())
        values.copy_(torch.stack(told).sum(0))
        self.sums += self.here.rank == 0

    def run(self, work) -> list:
        """What `work(rank)` returns in each of the processes."""

        def one(rank: int):
            self.here.rank = rank
            return work(rank)

        with ThreadPoolExecutor(self.world) as threads:
            return list(threads.map(one, range(self.world)))


@pytest.fixture
def group(monkeypatch):
    """Make a group of so many processes: group(2)."""

    def make(world: int) -> Group:
        made = Group(world)
        for name in ("get_rank", "get_world_size", "all_gather_object", "all_reduce"):
            monkeypatch.setattr(torch.distributed, name, getattr(made, name))
        return made

    return make


def values(rank: int, step: int = 0, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """What a process has in a step: tensors of several shapes, [17] in all."""
    draw = torch.Generator().manual_seed(100 * step + rank)
    shapes = ((3, 4), (1,), (), (3,))
    return [torch.randn(shape, generator=draw).to(dtype) for shape in shapes]


def flat(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("world", [2, 3, 5])
def test_all_have_the_same_bits(group, world):
    """Sums in the order of the ranks, in every dtype, of sizes that grow on the way."""
    made = group(world)
    dtypes = (torch.float32, torch.float64, torch.bfloat16)

    def work(rank: int):
        memory = SharedMemory()
        means = [memory.mean(values(rank, dtype=dtype)) for dtype in dtypes]
        return [*means, memory.mean([torch.full((3000,), float(rank))])]

    found = made.run(work)
    for index, dtype in enumerate(dtypes):
        total = flat(values(0, dtype=dtype))
        for rank in range(1, world):
            total = total + flat(values(rank, dtype=dtype))
        for means in found:
            assert torch.equal(means[index], total * (1 / world))
    for means in found:
        assert torch.equal(means[-1], torch.full((3000,), (world - 1) / 2))


@pytest.mark.parametrize("waits", ["barrier", "messages"])
def test_a_slow_reader_reads_its_own_step(group, monkeypatch, waits):
    """Until it has added, the others write to other segments."""
    made, steps = group(3), 6
    if waits == "messages":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    add = torch.add

    def late_add(*operands, **options) -> torch.Tensor:
        if made.get_rank() == 2:  # the others run into their next wait
            time.sleep(0.02)
        return add(*operands, **options)

    def work(rank: int):
        memory = SharedMemory()
        return [memory.mean(values(rank, step)) for step in range(steps)]

    monkeypatch.setattr(shared.torch, "add", late_add)
    for means in made.run(work):
        for step, mean in enumerate(means):
            want = sum(flat(values(rank, step)) for rank in range(3)) / 3
            torch.testing.assert_close(mean, want)


@pytest.mark.parametrize("waits", ["barrier", "messages"])
def test_one_wait_for_a_mean(group, monkeypatch, waits):
    """By a message where there are no descriptors of processes; two more messages where memory is
    made."""
    made = group(2)
    if waits == "messages":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    memories = [SharedMemory(), SharedMemory()]
    counts = []
    for _ in range(3):
        made.run(lambda rank: memories[rank].mean(values(rank)))
        counts.append(made.sums)
    assert counts == ([2, 2, 2] if waits == "barrier" else [3, 4, 5])


def refuse(*args: object) -> None:
    raise OSError(errno.ENOSPC, "no room")


def other_token(told: list, size: int) -> list:
    """As in a container, where a process has another one's number."""
    return shared_seen([*told[:-1], (told[-1][0], b"?" * shared.TOKEN_BYTES)], size)


shared_seen = shared.seen
REFUSALS = {  # where memory is not to be had -> what one process finds then
    "no such call": (os, "memfd_create", None),
    "not permitted": (os, "memfd_create", refuse),
    "no room": (os, "posix_fallocate", refuse),
    "not to be opened": (os, "open", refuse),
    "not to be mapped": (shared, "mmap", refuse),
    "another process's": (shared, "seen", other_token),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_where_one_has_no_memory_all_send_messages(group, monkeypatch, why):
    """Once and for all, and nothing stays open."""
    made = group(2)
    owner, name, instead = REFUSALS[why]
    plain = getattr(owner, name)
    if instead is None:
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(
            owner, name, lambda *args: (instead if made.get_rank() else plain)(*args)
        )
    before = len(os.listdir("/proc/self/fd"))

    def work(rank: int):
        memory = SharedMemory()
        return [averaging.mean_of(values(rank, step), memory) for step in range(2)], memory

    for means, memory in made.run(work):
        assert memory.refused
        assert not memory.held
        for step, mean in enumerate(means):
            torch.testing.assert_close(mean, flat(values(0, step)).add(flat(values(1, step))) / 2)
    del means, memory
    assert len(os.listdir("/proc/self/fd")) == before
    assert made.sums == 3  # one asks whether all have memory, two are the messages


def another_pipe(path: str, flags: int) -> int:
    """As in a container, where a process has another one's number."""
    if flags & os.O_ACCMODE != os.O_WRONLY:
        return os_open(path, flags)
    own, other = os.pipe()
    os.close(own)
    return other


os_open = os.open


@pytest.mark.parametrize("name, instead", [("pidfd_open", refuse), ("open", another_pipe)])
def test_where_one_sees_no_pipe_all_wait_by_messages(group, monkeypatch, name, instead):
    """And share memory all the same."""
    made = group(2)
    plain = getattr(os, name)
    monkeypatch.setattr(os, name, lambda *args: (instead if made.get_rank() else plain)(*args))

    def work(rank: int):
        memory = SharedMemory()
        return memory.mean(values(rank)), memory

    for means, memory in made.run(work):
        assert memory.held
        assert memory.barrier is None
        torch.testing.assert_close(means, flat(values(0)).add(flat(values(1))) / 2)


def test_memory_goes_with_its_last_holder(group):
    """No file is left open, whatever grew."""
    made = group(2)
    before = len(os.listdir("/proc/self/fd"))

    def work(rank: int) -> list[mmap.mmap]:
        memory = SharedMemory()
        for size in (1, 5000, 10000):
            memory.mean([torch.ones(size)])
        return memory.held

    held = made.run(work)
    assert [len(one) for one in held] == [2, 2]
    del held
    assert len(os.listdir("/proc/self/fd")) == before


PROCESSES = """
import os, signal, sys, torch, torch.distributed as dist
torch.set_num_threads(1)
from datetime import timedelta
from elman.train.shared import SharedMemory

other = os.fork()
rank = int(other == 0)
store = dist.FileStore(sys.argv[1], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(0, 100))
memory = SharedMemory()
for step in range(50):
    mean = memory.mean([torch.full((1000,), float(rank + step))])
    assert not memory.refused and bool((mean == step + 0.5).all()), mean
assert not [line for line in open("/proc/self/maps") if "/dev/shm/" in line]
if rank:
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(other, 0)
try:
    memory.mean([torch.ones(1000)])
except RuntimeError as error:
    from elman.train.connection import of_connection
    print("gone" if of_connection(error) else error)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc")
def test_processes(tmp_path):
    """Two, each of which sees the other's memory, which is in no folder; one that is killed is an
    error of the connection."""
    ended = begin("-c", PROCESSES, str(tmp_path / "store"))
    out, err = ended.communicate(PATIENCE_S)
    assert out.split() == ["gone"], out + err
