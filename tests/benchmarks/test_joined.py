"""Processes of this machine: what they sum gradients through, and steps of a stack that they
share."""

from __future__ import annotations

import io

import pytest

from benchmarks.scaling import joined
from benchmarks.scaling.joined import (
    fitted,
    measure_contention,
    measure_joined,
    measure_memory,
    measure_sharing,
)
from benchmarks.scaling.links import Memory
from benchmarks.scaling.times import Stack
from elman.measuring.process import ProcessError
from elman.train.distributed import gradients
from helpers import need_engine

STACK = Stack("gru", 9, 2, 5, "float32", 1)
SIZES = (1 << 10, 1 << 16, 1 << 22)


@pytest.mark.parametrize("memory", [Memory(1e-4, 1e9), Memory(0.0, 2e9)])
def test_a_fit_finds_wait_and_bandwidth(memory):
    """From what two processes take."""
    found = fitted({str(size): memory.sum_s(size, 2) for size in SIZES})
    assert found.wait_s == pytest.approx(memory.wait_s, abs=1e-9)
    assert found.bytes_per_s == pytest.approx(memory.bytes_per_s)


def test_a_fit_of_noise_is_a_memory():
    """Times that fall with the size: neither a negative wait nor endless bandwidth."""
    found = fitted({str(size): 1.0 / size for size in SIZES})
    assert found.wait_s >= 0
    assert 0 < found.bytes_per_s < float("inf")


def test_torch_without_distributed(monkeypatch):
    """One line, before a process is started."""
    monkeypatch.setattr(joined.dist, "is_available", lambda: False)
    with pytest.raises(ProcessError, match=r"built without torch\.distributed"):
        measure_memory()


@pytest.mark.slow
def test_two_processes_sum(monkeypatch):
    """Gradients arrive, and take time."""
    monkeypatch.setattr(joined, "MESSAGES", (1 << 10, 1 << 20))
    memory = measure_memory()
    assert memory.sum_s(1 << 20, 2) > 0


@pytest.fixture
def one_process(monkeypatch):
    """What is started runs here, as a group of one process."""

    def run_program(program, _):
        monkeypatch.setattr(joined.sys, "stdin", io.StringIO(program.text))
        told = io.StringIO()
        monkeypatch.setattr(joined.sys, "stdout", told)
        monkeypatch.setattr(joined, "spawn", lambda work, args, nprocs: work(0, *args))
        joined.main()
        return told.getvalue()

    monkeypatch.setattr(joined, "run_program", run_program)


def test_what_is_measured_is_what_trains(one_process, monkeypatch):
    """Steps of processes that share a model sum all its gradients as a run does, once in a step;
    those of processes at once sum nothing."""
    need_engine("c")
    sums = []

    def mean(values):
        sums.append(values.numel())
        return values

    monkeypatch.setattr(gradients, "mean", mean)
    assert measure_contention(STACK, 2, 1, 0.01) > 0
    assert not sums
    assert measure_joined(STACK, 2, 1, 0.01).step_s > 0
    weights = list(STACK.module().parameters())
    assert len(sums) > joined.WARM_UP
    flags = len(weights)  # which of them have a gradient
    assert set(sums) == {flags + sum(one.numel() for one in weights)}


@pytest.mark.slow
def test_two_processes_train(monkeypatch):
    """A few steps; one that cannot says why."""
    need_engine("c")
    ran = measure_joined(STACK, 2, 2, 0.01)
    assert ran.step_s > 0
    assert ran.core_s > 0
    monkeypatch.setattr(joined, "LIMIT_S", 0.1)
    with pytest.raises(ProcessError, match=r"it took longer than 0\.1 s"):
        measure_joined(STACK, 2, 2, 0.01)


def test_the_wrapper_costs_something(one_process):
    """What DistributedDataParallel takes beside a process without others, as one that is started
    finds it."""
    need_engine("c")
    assert measure_sharing(STACK, 0.01) >= 0
