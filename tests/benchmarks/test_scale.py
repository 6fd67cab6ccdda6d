"""Forecasts of workers: a table, a sentence and a page; times of another machine; refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scaling import __main__ as command
from benchmarks.scaling.joined import Ran
from benchmarks.scaling.links import Memory
from benchmarks.scaling.times import FORMAT, Measured, Stack, write_times
from elman.measuring.timing import Samples
from elman.tuning.facts import cores, processor

STACK = Stack("gru", 1000, 2, 100, "float32", 1)
HERE = {"cpu": processor(), "cores": cores()}
SECONDS = {"1": 1e-3, "2": 1.1e-3, "4": 2e-3, "8": 4e-3}  # above 2: in proportion


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Times of a stack, its gradients small."""
    path = tmp_path / "times.json"
    write_times(path, Measured(STACK, [8e3, 8e3], SECONDS, HERE, 0.0, 0.0, FORMAT))
    return path


def test_measured_here(tmp_path, scaling, monkeypatch):
    """By a clock of our own; the file of times gives the same table again."""
    times = {"1": 1e-3, "2": 1.05e-3, "4": 2e-3}
    monkeypatch.setattr(
        "benchmarks.scaling.times.time_side_by_side",
        lambda runs, *_: {name: Samples([times[name]], []) for name in runs},
    )
    monkeypatch.setattr(command, "measure_sharing", lambda stack: 1e-5)
    words = ["gru", "--hidden", "9", "--steps", "5", "--batch", "4", "--interconnect", "5,7"]
    status, told = scaling(*words, "--out", str(tmp_path / "a"))
    assert status == 0, told
    assert "2 layers of gru, 9 units, T=5, float32, global minibatch 4, 5,7: 5 µs, 7 GB/s" in told
    assert "It pays up to 2 workers, a minibatch of 2 each: a step takes 1.0" in told
    assert "More than 4 workers would not have a sample each." in told
    page = (tmp_path / "a" / "scale.html").read_text("utf-8")
    assert "It pays up to 2 workers" in page
    assert page.count("<svg") == 5

    again = ["--times", str(tmp_path / "a" / "times.json"), "--batch", "4", "--interconnect", "5,7"]
    status, second = scaling(*again, "--out", str(tmp_path / "b"))
    assert status == 0
    assert second.splitlines()[:9] == told.splitlines()[:9]
    assert not (tmp_path / "b" / "times.json").exists()


@pytest.mark.usefixtures("without_charts")
def test_a_slow_interconnect_ends_it_sooner(stored, scaling, tmp_path):
    """The same times; workers that wait for one another do not pay."""
    words = ["--times", str(stored), "--batch", "8", "--out", str(tmp_path)]
    assert "It pays up to 4 workers" in scaling(*words, "--interconnect", "nvlink")[1]
    slow = scaling(*words, "--interconnect", "9999,1")[1]
    assert "It pays up to one worker" in slow
    assert "2 would take" in slow
    assert "8 would save 8%" in scaling(*words, "--interconnect", "nvlink")[1]
    picky = scaling(*words, "--interconnect", "nvlink", "--least-saved", "0.46")[1]
    assert "It pays up to 2 workers" in picky


@pytest.mark.usefixtures("without_charts")
def test_beyond_what_was_measured(stored, scaling, tmp_path):
    """Marked, and said."""
    words = ["--times", str(stored), "--batch", "16", "--workers", "2", "--out", str(tmp_path)]
    status, told = scaling(*words)
    assert status == 0
    assert "≈ 8 ms" in told
    assert "a minibatch of 8 is the largest that was measured" in told
    assert "no more were looked at" in told


@pytest.mark.usefixtures("without_charts")
def test_a_busy_machine_is_told(stored, scaling, tmp_path):
    """By the file, too; what is quiet is not."""
    words = ["--times", str(stored), "--batch", "8", "--out", str(tmp_path)]
    assert "quiet machine" not in scaling(*words)[1]
    stored.write_text(json.dumps({**json.loads(stored.read_text()), "waited": 0.42}))
    assert "Other programs took the cores for 42% of the time" in scaling(*words)[1]


@pytest.mark.usefixtures("without_charts")
def test_processes_of_this_machine(stored, scaling, tmp_path, monkeypatch):
    """Forecast by its memory, beside runs."""
    monkeypatch.setattr(command, "measure_memory", lambda: Memory(1e-5, 1e9))
    monkeypatch.setattr(command, "measure_joined", lambda stack, size, n, s: Ran(n * 1e-3, 5e-4))
    monkeypatch.setattr(command, "cores", lambda: 2)
    monkeypatch.setattr(command, "check_same_machine", lambda measured: None)
    words = ["--times", str(stored), "--batch", "8", "--out", str(tmp_path), "--check", "2,4"]
    status, told = scaling(*words, "--interconnect", "memory")
    assert status == 0
    assert "memory: 10 µs, 1 GB/s" in told
    assert "It pays up to 2 workers" in told
    assert "Forecast beside runs here" in told
    assert "measured / forecast" in (tmp_path / "scale.html").read_text("utf-8")
    checked = [line for line in told.splitlines() if line.startswith("│         2 │ ")]
    assert [line.split("│")[4].strip() for line in checked] == ["2 ms"], told
    assert [line.split("│")[6].strip() for line in checked] == ["0.5 ms"], told


@pytest.mark.usefixtures("without_charts")
def test_processes_at_once_are_measured(tmp_path, scaling, monkeypatch):
    """Where workers share this machine: forecast by it, and kept in the file."""
    asked = []

    def contended(stack: Stack, minibatch: int, processes: int) -> float:
        asked.append((minibatch, processes))
        return 4e-3

    monkeypatch.setattr(
        "benchmarks.scaling.times.time_side_by_side",
        lambda runs, *_: {name: Samples([1e-3 * int(name)], []) for name in runs},
    )
    monkeypatch.setattr(command, "measure_sharing", lambda stack: 1e-5)
    monkeypatch.setattr(command, "measure_contention", contended)
    monkeypatch.setattr(command, "measure_memory", lambda: Memory(0.0, 1e12))
    monkeypatch.setattr(command, "cores", lambda: 2)
    words = ["gru", "--hidden", "9", "--steps", "5", "--batch", "4", "--out", str(tmp_path)]
    told = scaling(*words, "--interconnect", "memory")[1]
    assert asked == [(2, 2), (1, 4)]
    assert json.loads((tmp_path / "times.json").read_text())["contention"] == {"2": 2.0, "4": 4.0}
    for count in ("2", "4"):
        (line,) = [line for line in told.splitlines() if line.startswith(f"│       {count} │ ")]
        assert line.split("│")[3].strip() == "4 ms"
    del asked[:]
    scaling(*words, "--interconnect", "nvlink")
    assert not asked


@pytest.mark.usefixtures("without_charts")
def test_nodes_of_several_devices(stored, scaling, tmp_path):
    """A slow interconnect hurts between nodes alone; both are in the title."""
    words = ["--times", str(stored), "--batch", "8", "--out", str(tmp_path)]
    words += ["--interconnect", "9999,1"]
    status, told = scaling(*words, "--per-node", "4")
    assert status == 0, told
    want = "nodes of 4 (inside 3 µs, 450 GB/s), 9999,1: 1e+04 µs, 1 GB/s"
    assert want in " ".join(told.split())
    assert "It pays up to 4 workers" in told
    slow = scaling(*words, "--per-node", "4", "--inside", "8888,1")[1]
    assert "It pays up to one worker" in slow


def test_a_minibatch_that_does_not_learn(stored, scaling, tmp_path):
    """Refused with its reason and the one to use; what learns is not."""
    words = ["--times", str(stored), "--out", str(tmp_path), "--most-batch", "128"]
    status, told = scaling(*words, "--batch", "512")
    assert status == 1
    assert "a global minibatch of 512 is too large to learn" in told
    assert "--batch 128" in told
    assert scaling(*words, "--batch", "128")[0] == 0


@pytest.mark.parametrize(
    "words, status, found",
    [
        (["--interconnect", "pigeon"], 2, "no interconnect is called 'pigeon'"),
        (["--check", "1"], 2, "'1' is not of the form 2,4"),
        (["--check", "2;4"], 2, "is not of the form 2,4"),
        (["--hidden", "0"], 2, "--hidden"),
        (["--per-node", "2", "--inside", "pigeon"], 2, "Invalid value for --inside"),
        (["--inside", "nvlink"], 2, "of nodes of how many? --per-node 8"),
        (["--interconnect", "memory", "--per-node", "2"], 2, "all workers are on this machine"),
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
    ended, told = scaling(*words)
    assert ended == status
    assert found in " ".join(told.replace("│", " ").split())
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made(stored, scaling):
    """Told before anything is measured."""
    status, told = scaling("gru", "--out", str(stored / "below"))
    assert status == 1
    assert "the folder cannot be made" in told


def test_runs_here_are_not_compared_with_times_elsewhere(stored, scaling):
    """The times say which machine they are of."""
    content = json.loads(stored.read_text())
    stored.write_text(json.dumps({**content, "machine": {"cpu": "abacus", "cores": 10}}))
    status, told = scaling("--times", str(stored), "--check", "2")
    assert status == 1
    assert "the times are of another machine" in told
    assert "abacus, 10 cores" in told
    stored.write_text(json.dumps({**content, "stack": {**content["stack"], "cell": "away"}}))
    status, told = scaling("--times", str(stored), "--check", "2")
    assert status == 1
    assert "no cell is called 'away'" in told
