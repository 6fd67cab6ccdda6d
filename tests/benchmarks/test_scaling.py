"""Forecasts of workers: steps that are measured or read, sums that are computed, what is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmarks import scaling as module
from benchmarks.allreduce import Interconnect, step_s
from benchmarks.scaling import (
    Nodes,
    Point,
    Stack,
    Times,
    measure_sharing,
    measure_times,
    paying,
    read_times,
    scaled,
    write_times,
)
from elman.errors import RunError
from elman.measuring.timing import Samples

STACK = Stack("gru", 9, 2, 5, "float32", 1)
FREE = Interconnect(0.0, 1e30)
SECONDS = {"1": 1e-3, "2": 1.1e-3, "4": 2e-3, "8": 4e-3}  # above 2: in proportion
STORED = Times(STACK, [8e3, 8e3], SECONDS, {"cpu": "x"})


def of(seconds: dict[str, float], gradients: tuple[float, ...] = (1e3, 1e3), **fields) -> Times:
    return Times(STACK, list(gradients), seconds, {}, **fields)


TIMES = of({"1": 1.0, "2": 1.5, "4": 3.0})


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Times of a stack, its gradients small."""
    write_times(tmp_path / "times.json", STORED)
    return tmp_path / "times.json"


@pytest.mark.parametrize(
    "minibatch, seconds", [(1, 1.0), (2, 1.5), (3, 2.25), (4, 3.0), (8, 6.0), (6, 4.5)]
)
def test_compute_of_any_minibatch(minibatch, seconds):
    """As measured, between two on a line, above all in proportion; below, less was never seen."""
    assert TIMES.compute_s(minibatch) == pytest.approx(seconds)
    assert of({"4": 3.0, "8": 5.0}).compute_s(1) == 3.0


def test_free_messages_leave_compute():
    """Without an all-reduce, speed-up is the ratio of computes; the largest share counts, and who
    shares pays for it."""
    points = scaled(TIMES, 4, 1024, FREE)
    assert [(point.workers, point.minibatch) for point in points] == [(1, 4), (2, 2), (4, 1)]
    assert [point.speedup for point in points] == pytest.approx([1.0, 2.0, 3.0])
    assert [point.minibatch for point in scaled(TIMES, 6, 4, FREE)] == [6, 3, 2]
    shared = replace(TIMES, sharing_s=0.25)
    assert [point.step_s for point in scaled(shared, 4, 4, FREE)] == [3.0, 1.75, 1.25]


def test_workers_fill_nodes():
    """Devices of one node by powers of two, then whole nodes; steps by the all-reduce's formulas:
    a ring inside, one across, never across within a node."""
    link = Interconnect(1e-3, 1e6)
    times, nodes = of({"1": 1.0}, (1e3,)), Nodes(6, link, link)
    points = scaled(times, 64, 40, nodes)
    assert [point.workers for point in points] == [1, 2, 4, 6, 12, 24]
    assert points[4].step_s == pytest.approx(step_s([1e3], 6.0, 12, nodes))
    assert points[4].step_s > points[4].compute_s
    assert [point.workers for point in scaled(times, 3, 40, nodes)] == [1, 2]
    fast, slow = Interconnect(0.0, 4e6), Interconnect(0.0, 1e6)
    nodes = Nodes(2, fast, slow)
    assert nodes.allreduce_s(4e6, 1) == 0.0
    assert nodes.allreduce_s(4e6, 2) == pytest.approx(2 * 2e6 / 4e6)
    assert nodes.allreduce_s(4e6, 4) == pytest.approx(1.0 + 2 * 2e6 / 1e6)


def test_it_pays_until_a_doubling_saves_too_little():
    """The first poor doubling ends it, whatever comes after."""
    steps = [8.0, 4.4, 4.2, 2.1]
    points = [Point(2**k, 1, step, step, 8.0 / step) for k, step in enumerate(steps)]
    assert [paying(points, least).workers for least in (0.1, 0.01, 0.5)] == [2, 8, 1]
    assert paying(points[:1], 0.1).workers == 1


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
    monkeypatch.setattr(module, "time_side_by_side", side_by_side)
    monkeypatch.setattr(module, "measure_sharing", lambda stack: 0.0)
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])


def test_minibatches_double(clock):
    """Up to the global one, each by its median; no more than fit into the time."""
    times = measure_times(STACK, 12, 1e9)
    assert times.seconds == {"1": 2.0, "2": 4.0, "4": 8.0, "8": 16.0}
    assert times.machine["cpu"]
    for seconds in (30.0, 100.0, 1000.0):
        times = measure_times(STACK, 512, seconds)
        one_round = sum(int(size) for size in times.seconds)
        assert (module.BEFORE + module.LEAST_ROUNDS) * one_round <= seconds
        assert len(times.seconds) < 10


def test_a_step_is_a_training_step(monkeypatch):
    """Gradients of one step, not of all that were timed; the bytes of each layer are theirs."""
    monkeypatch.setattr(module, "measure_sharing", lambda stack: 0.0)
    stack = replace(STACK, layers=3, dtype="float64")
    net = stack.module()
    run = stack.step(net, 2)
    run()
    once = [p.grad.clone() for p in net.parameters()]
    run()
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), once, strict=True))
    assert any(g.abs().sum() > 0 for g in once)
    sizes = measure_times(stack, 1, 1e-3).gradients
    assert sizes == [sum(g.nbytes for g in once) / 3] * 3


def test_what_the_wrapper_costs():
    """DistributedDataParallel around a step, without another process; no group is left."""
    assert 0 <= measure_sharing(STACK, 0.01) < 1
    assert not torch.distributed.is_initialized()


def damaged(**changes: object) -> str:
    return json.dumps({k: v for k, v in {**asdict(STORED), **changes}.items() if v is not None})


@pytest.mark.parametrize(
    "text, found",
    [
        (None, "there is no such file"),
        ('{"case": "gru"}', "stack is missing"),
        (damaged()[:-9], "it is not JSON"),
        (damaged(seconds={"one": 1.0}), "seconds: by minibatch"),
        (damaged(seconds={"1": float("nan")}), "seconds.1: nan is not in"),
    ],
)
def test_other_files(tmp_path, stored, text, found):
    """What was written is read; else one line says what is wrong, and where times come from."""
    assert read_times(stored) == STORED
    path = tmp_path / "other.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match="times cannot be read") as caught:
        read_times(path)
    assert found in str(caught.value)
    assert "python -m benchmarks.scaling without --times" in str(caught.value)


def test_measured_here(tmp_path, scaling, monkeypatch):
    """By a clock of our own; the file of times gives the same table again."""
    times_s = {"1": 1e-3, "2": 1.05e-3, "4": 2e-3}
    monkeypatch.setattr(
        module,
        "time_side_by_side",
        lambda runs, *_: {name: Samples([times_s[name]], []) for name in runs},
    )
    monkeypatch.setattr(module, "measure_sharing", lambda stack: 1e-5)
    words = ["gru", "--hidden", "9", "--steps", "5", "--batch", "4", "--interconnect", "5,7"]
    status, output = scaling(*words, "--out", str(tmp_path / "a"))
    assert status == 0, output
    assert "2 layers of gru, 9 units, T=5, float32, global minibatch 4, 5,7: 5 µs, 7 GB/s" in output
    assert "It pays up to 2 workers, a minibatch of 2 each: a step takes 1.0" in output
    assert "More than 4 workers would not have a sample each." in output
    again = ["--times", str(tmp_path / "a" / "times.json"), "--batch", "4", "--interconnect", "5,7"]
    assert scaling(*again) == (0, output)


def test_what_is_said(stored, scaling):
    """A slow interconnect ends it sooner, between nodes alone; what was not measured is marked, and
    so is a busy machine."""
    words = ["--times", str(stored), "--batch", "8", "--interconnect"]
    fast = scaling(*words, "nvlink")[1]
    assert "It pays up to 4 workers" in fast
    assert "8 would save 8%" in fast
    assert "quiet machine" not in fast
    assert "It pays up to 2 workers" in scaling(*words, "nvlink", "--least-saved", "0.46")[1]
    slow = scaling(*words, "9999,1")[1]
    assert "It pays up to one worker" in slow
    assert "2 would take" in slow
    nodes = scaling(*words, "9999,1", "--per-node", "4")[1]
    assert "nodes of 4 (inside 3 µs, 450 GB/s), 9999,1: 1e+04 µs" in " ".join(nodes.split())
    assert "It pays up to 4 workers" in nodes
    beyond = scaling("--times", str(stored), "--batch", "16", "--workers", "2")[1]
    assert "≈ 8 ms" in beyond
    assert "a minibatch of 8 is the largest that was measured" in beyond
    assert "no more were looked at" in beyond
    stored.write_text(json.dumps({**json.loads(stored.read_text()), "waited": 0.42}))
    assert "Other programs took the cores for 42% of the time" in scaling(*words, "nvlink")[1]


@pytest.mark.parametrize(
    "words, status, found",
    [
        (["--interconnect", "pigeon"], 2, "no interconnect is called 'pigeon'"),
        (["--per-node", "2", "--inside", "pigeon"], 2, "Invalid value for --inside"),
        (["--inside", "nvlink"], 2, "of nodes of how many? --per-node 8"),
        (["nonesuch"], 1, "no cell is called 'nonesuch'"),
        (["phased_lstm"], 1, "phased_lstm reads x[I], t, not one input of any size"),
        (["--times", "missing.json"], 1, "there is no such file"),
        (["--hidden", "256", "--threads", "1", "--times", "x.json"], 2, "hidden, threads"),
    ],
)
def test_wrong_calls(words, status, found, scaling, tmp_path, monkeypatch):
    """Before anything is measured, and nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    ended, output = scaling(*words)
    assert ended == status
    assert found in " ".join(output.replace("│", " ").split())
    assert not list(tmp_path.iterdir())
