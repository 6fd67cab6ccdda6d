"""Processes joined by gloo: what connects them, and steps of a stack that they share."""

from __future__ import annotations

import io

import pytest

from elman.bench import joined
from elman.bench.joined import (
    fitted,
    measure_contention,
    measure_ddp,
    measure_loopback,
    measure_sharing,
)
from elman.bench.processes import ProcessError
from elman.bench.times import Stack
from elman.plan.allreduce import Interconnect, ring_s
from helpers import need_engine

STACK = Stack("gru", 9, 2, 5, "float32", 1)
SIZES = (1 << 10, 1 << 16, 1 << 22)


@pytest.mark.parametrize("link", [Interconnect(1e-4, 1e9), Interconnect(0.0, 2e9)])
def test_a_fit_finds_latency_and_bandwidth(link):
    """From what a ring of two takes."""
    found = fitted({str(size): ring_s(size, 2, link) for size in SIZES}, 0.5)
    assert found.latency_s == pytest.approx(link.latency_s, abs=1e-9)
    assert found.bytes_per_s == pytest.approx(link.bytes_per_s)
    assert found.busy == 0.5


def test_a_fit_of_noise_is_an_interconnect():
    """Times that fall with the size: neither a negative latency nor endless bandwidth."""
    found = fitted({str(size): 1.0 / size for size in SIZES}, 1.7)
    assert found.latency_s >= 0
    assert 0 < found.bytes_per_s < float("inf")
    assert found.busy == 1.0


def test_torch_without_distributed(monkeypatch):
    """One line, before a process is started."""
    monkeypatch.setattr(joined.dist, "is_available", lambda: False)
    with pytest.raises(ProcessError, match=r"built without torch\.distributed"):
        measure_loopback()


@pytest.mark.slow
def test_two_processes_sum(monkeypatch):
    """Messages arrive, and take time."""
    monkeypatch.setattr(joined, "MESSAGES", (1 << 10, 1 << 20))
    link = measure_loopback()
    assert 0 < ring_s(1 << 20, 2, link) < 10
    assert 0 < link.busy <= 1


def test_contention_sends_nothing(monkeypatch):
    """Each process is a group of its own."""
    groups, given = [], []
    monkeypatch.setattr(joined.dist, "new_group", lambda ranks: groups.append(ranks) or ranks[0])
    monkeypatch.setattr(joined.dist, "get_rank", lambda: 1)
    monkeypatch.setattr(joined, "_steps", lambda what, group: given.append(group) or {})
    joined.WORK["contention"]({"processes": 3})
    assert groups == [[0], [1], [2]]
    assert given == [1]


@pytest.mark.slow
def test_two_processes_train(monkeypatch):
    """A few steps; one that cannot says why."""
    need_engine("c")
    ran = measure_ddp(STACK, 2, 2, 0.01)
    assert 0 < ran.step_s < 10
    assert 0 < ran.core_s < 10
    monkeypatch.setattr(joined, "LIMIT_S", 0.1)
    with pytest.raises(ProcessError, match=r"it took longer than 0\.1 s"):
        measure_ddp(STACK, 2, 2, 0.01)


def test_a_process_trains_alone(monkeypatch):
    """What is measured of the wrapper, and beside others, as processes that are started do it."""
    need_engine("c")

    def run_program(program, _):
        monkeypatch.setattr(joined.sys, "stdin", io.StringIO(program.text))
        told = io.StringIO()
        monkeypatch.setattr(joined.sys, "stdout", told)
        monkeypatch.setattr(joined, "spawn", lambda work, args, nprocs: work(0, *args))
        joined.main()
        return told.getvalue()

    monkeypatch.setattr(joined, "run_program", run_program)
    assert 0 <= measure_sharing(STACK, 0.01) < 1
    assert 0 < measure_contention(STACK, 2, 1, 0.01) < 10
