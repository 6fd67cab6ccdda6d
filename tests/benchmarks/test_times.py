"""Times of a stack over its minibatch: measured, stored, and files that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from benchmarks.scaling import times
from benchmarks.scaling.times import (
    Measured,
    Stack,
    measure_sharing,
    measure_times,
    read_times,
    write_times,
)
from elman.errors import RunError
from elman.measuring.timing import Samples

STACK = Stack("gru", 9, 2, 5, "float32", 1)
MEASURED = Measured(STACK, [1944.0, 1944.0], {"1": 1e-3, "2": 1.5e-3}, {"cpu": "x"}, 1e-4, 0.0)


@pytest.fixture
def clock(monkeypatch):
    """A step of a minibatch of n takes n seconds; what is timed is called once."""
    now = [0.0]

    def step(stack: Stack, module: torch.nn.Module, minibatch: int) -> Callable[[], None]:
        def run() -> None:
            now[0] += minibatch

        return run

    def side_by_side(runs, seconds, rounds):
        assert seconds >= rounds * sum(map(int, runs)) or len(runs) == 1
        return {name: Samples([float(name), 2.0 * float(name), 9e9], []) for name in runs}

    monkeypatch.setattr(Stack, "step", step)
    monkeypatch.setattr(times, "time_side_by_side", side_by_side)
    monkeypatch.setattr(times, "measure_sharing", lambda stack: 0.0)
    monkeypatch.setattr(times.time, "perf_counter", lambda: now[0])


def test_minibatches_double(clock):
    """Up to the global one, each by its median."""
    result = measure_times(STACK, 12, 1e9)
    assert result.seconds == {"1": 2.0, "2": 4.0, "4": 8.0, "8": 16.0}
    assert result.times.compute_s(3) == pytest.approx(6.0)
    assert result.machine["cpu"]


@pytest.mark.parametrize("seconds", [30.0, 100.0, 1000.0])
def test_the_time_is_kept(clock, seconds):
    """Warming up and the least rounds of all minibatches take no more than was stated."""
    result = measure_times(STACK, 512, seconds)
    one_round = sum(int(size) for size in result.seconds)
    assert (times.BEFORE + times.LEAST_ROUNDS) * one_round <= seconds
    assert len(result.seconds) < 10


@pytest.mark.parametrize("cell", ["gru", "lstm", "mgu"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bytes_of_gradients(cell, dtype):
    """Layer by layer: those that a backward makes."""
    stack = replace(STACK, cell=cell, dtype=dtype, layers=3)
    module = stack.module()
    output, _ = module(torch.randn(5, 2, 9, dtype=getattr(torch, dtype)))
    output.sum().backward()
    sizes = times.gradient_bytes(module, 3)
    gradients = sum(p.grad.nbytes for p in module.parameters() if p.grad is not None)
    assert sum(sizes) == gradients
    assert len(set(sizes)) == 1


def test_a_step_is_a_training_step():
    """Gradients of one step, not of all that were timed."""
    module = STACK.module()
    run = STACK.step(module, 2)
    run()
    once = [p.grad.clone() for p in module.parameters()]
    run()
    assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), once, strict=True))
    assert any(g.abs().sum() > 0 for g in once)


def test_what_the_wrapper_costs():
    """DistributedDataParallel around a step, without another process; no group is left."""
    assert 0 <= measure_sharing(STACK, 0.01) < 1
    assert not torch.distributed.is_initialized()


def test_times_are_read_as_written(tmp_path):
    """Equal, in all fields."""
    path = tmp_path / "times.json"
    write_times(path, MEASURED)
    assert read_times(path) == MEASURED


def damaged(**changes: object) -> str:
    content = json.loads(json.dumps(MEASURED, default=lambda value: vars(value)))
    return json.dumps({k: v for k, v in {**content, **changes}.items() if v is not None})


@pytest.mark.parametrize(
    "text, found",
    [
        (None, "there is no such file"),
        ("", "it is empty"),
        ('{"case": "gru"}', "stack is missing"),
        (damaged()[:-9], "it is not JSON"),
        (damaged(seconds={}), "seconds: by minibatch"),
        (damaged(seconds={"one": 1.0}), "seconds: by minibatch"),
        (damaged(seconds={"1": float("nan")}), "seconds.1: nan is not in"),
        (damaged(gradients=["many"]), "gradients"),
    ],
)
def test_other_files(tmp_path, text, found):
    """One line says what is wrong, and where times come from."""
    path = tmp_path / "times.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match="times cannot be read") as caught:
        read_times(path)
    assert found in str(caught.value)
    assert "python -m benchmarks.scaling without --times" in str(caught.value)
