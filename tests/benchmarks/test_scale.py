"""Forecasts of workers: a table and a sentence; times of another machine; refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scaling.times import Measured, Stack, write_times
from elman.measuring.timing import Samples
from elman.tuning.facts import cores, processor

STACK = Stack("gru", 1000, 2, 100, "float32", 1)
HERE = {"cpu": processor(), "cores": cores()}
SECONDS = {"1": 1e-3, "2": 1.1e-3, "4": 2e-3, "8": 4e-3}  # above 2: in proportion


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Times of a stack, its gradients small."""
    path = tmp_path / "times.json"
    write_times(path, Measured(STACK, [8e3, 8e3], SECONDS, HERE, 0.0, 0.0))
    return path


def test_measured_here(tmp_path, scaling, monkeypatch):
    """By a clock of our own; the file of times gives the same table again."""
    times = {"1": 1e-3, "2": 1.05e-3, "4": 2e-3}
    monkeypatch.setattr(
        "benchmarks.scaling.times.time_side_by_side",
        lambda runs, *_: {name: Samples([times[name]], []) for name in runs},
    )
    monkeypatch.setattr("benchmarks.scaling.times.measure_sharing", lambda stack: 1e-5)
    words = ["gru", "--hidden", "9", "--steps", "5", "--batch", "4", "--interconnect", "5,7"]
    status, output = scaling(*words, "--out", str(tmp_path / "a"))
    assert status == 0, output
    assert "2 layers of gru, 9 units, T=5, float32, global minibatch 4, 5,7: 5 µs, 7 GB/s" in output
    assert "It pays up to 2 workers, a minibatch of 2 each: a step takes 1.0" in output
    assert "More than 4 workers would not have a sample each." in output
    again = ["--times", str(tmp_path / "a" / "times.json"), "--batch", "4", "--interconnect", "5,7"]
    assert scaling(*again) == (0, output)


def test_a_slow_interconnect_ends_it_sooner(stored, scaling):
    """The same times; workers that wait for one another do not pay."""
    words = ["--times", str(stored), "--batch", "8"]
    assert "It pays up to 4 workers" in scaling(*words, "--interconnect", "nvlink")[1]
    slow = scaling(*words, "--interconnect", "9999,1")[1]
    assert "It pays up to one worker" in slow
    assert "2 would take" in slow
    assert "8 would save 8%" in scaling(*words, "--interconnect", "nvlink")[1]
    picky = scaling(*words, "--interconnect", "nvlink", "--least-saved", "0.46")[1]
    assert "It pays up to 2 workers" in picky


def test_beyond_what_was_measured(stored, scaling):
    """Marked, and said."""
    words = ["--times", str(stored), "--batch", "16", "--workers", "2"]
    status, output = scaling(*words)
    assert status == 0
    assert "≈ 8 ms" in output
    assert "a minibatch of 8 is the largest that was measured" in output
    assert "no more were looked at" in output


def test_a_busy_machine_is_told(stored, scaling):
    """By the file, too; what is quiet is not."""
    words = ["--times", str(stored), "--batch", "8"]
    assert "quiet machine" not in scaling(*words)[1]
    stored.write_text(json.dumps({**json.loads(stored.read_text()), "waited": 0.42}))
    assert "Other programs took the cores for 42% of the time" in scaling(*words)[1]


def test_nodes_of_several_devices(stored, scaling):
    """A slow interconnect hurts between nodes alone; both are in the title."""
    words = ["--times", str(stored), "--batch", "8"]
    words += ["--interconnect", "9999,1"]
    status, output = scaling(*words, "--per-node", "4")
    assert status == 0, output
    want = "nodes of 4 (inside 3 µs, 450 GB/s), 9999,1: 1e+04 µs, 1 GB/s"
    assert want in " ".join(output.split())
    assert "It pays up to 4 workers" in output
    slow = scaling(*words, "--per-node", "4", "--inside", "8888,1")[1]
    assert "It pays up to one worker" in slow


@pytest.mark.parametrize(
    "words, status, found",
    [
        (["--interconnect", "pigeon"], 2, "no interconnect is called 'pigeon'"),
        (["--hidden", "0"], 2, "--hidden"),
        (["--per-node", "2", "--inside", "pigeon"], 2, "Invalid value for --inside"),
        (["--inside", "nvlink"], 2, "of nodes of how many? --per-node 8"),
        (["nonesuch"], 1, "no cell is called 'nonesuch'"),
        (["phased_lstm"], 1, "phased_lstm reads x[I], t, not one input of any size"),
        (["--times", "missing.json"], 1, "there is no such file"),
        (["gru", "--times", "x.json"], 2, "leave cell out"),
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
