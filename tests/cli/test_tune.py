"""``elman tune``: a table per shape, reasons for refusals, remembered for other processes."""

from __future__ import annotations

import re

import pytest
import torch

import elman
from elman.cli.app import main
from elman.tuning.decisions import _decided


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit status and output of a command line."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out + out.err


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """All candidates take as long, and nobody else wants the cores."""
    monkeypatch.setattr("elman.tuning.contest._sample", lambda run: (run(), (1e-3, 0.0))[1])


def test_a_table_per_shape(capsys, nothing_known):
    """Candidates by time, the winner marked, the second time remembered."""
    words = ["tune", "gru", "--hidden", "9", "--shape", "5,2", "--shape", "9,2"]
    status, told = run(words, capsys)
    assert status == 0
    for sizes in ("T = 5, B = 2", "T = 9, B = 2"):
        for kind in ("data", "a layer's output"):
            line = rf"gru, its input {kind} \(float32 on cpu, {sizes}\): engine .*, benchmarked now"
            assert re.search(line, told)
    assert told.count("<- runs") == 4
    assert "fastest" in told
    told = run(words, capsys)[1]
    assert "benchmarked before, remembered" in told
    assert "--again benchmarks anew" in told
    assert "benchmarked now" in run([*words, "--again"], capsys)[1]


def test_refusals_have_reasons(capsys, nothing_known):
    """A cell that torch does not have."""
    status, told = run(["tune", "mgu", "--hidden", "9", "--shape", "5,2"], capsys)
    assert status == 0
    assert "mgu is not the formula of torch's RNN, GRU or LSTM" in told


def test_a_run_starts_at_once(capsys, nothing_known):
    """A layer fed with data, and one above it, find what was measured."""
    assert run(["tune", "gru", "--hidden", "9", "--shape", "5,2"], capsys)[0] == 0
    _decided.clear()
    net = elman.GRU(9, 9, 2)
    net(torch.randn(5, 2, 9))
    assert [runner.choices for runner in net.runners.values()]
    for runner in net.runners.values():
        (choice,) = runner.choices.values()
        assert choice.why == "remembered"


def test_layers_at_once_or_one_by_one(capsys, nothing_known, monkeypatch):
    """Of a stack both ways; nonsense is refused."""
    monkeypatch.setattr("elman.engines.c.engine.threads", lambda: 3)  # as many as it takes
    monkeypatch.setattr("elman.engines.c.engine._PRUNE_RATIO", 1e9)
    words = ["tune", "gru", "--hidden", "9", "--shape", "50,2", "--layers", "3"]
    status, told = run(words, capsys)

    assert status == 0
    assert "3 layers of gru (T = 50, B = 2): " in told
    for schedule in ("at once", "one after another"):
        assert schedule in told
    status, told = run([*words, "--inputs", "5"], capsys)
    assert status == 2


def test_what_is_not_sure_is_told(capsys, nothing_known, monkeypatch):
    """On a busy machine: what was measured is kept all the same."""
    monkeypatch.setattr("elman.tuning.contest._sample", lambda run: (run(), (1e-3, 1.0))[1])
    words = ["tune", "rnn", "--hidden", "9", "--shape", "5,2"]
    assert "not sure yet: other programs took the cores" in run(words, capsys)[1]
    assert list((nothing_known / "tuning").glob("*.json"))
    monkeypatch.setattr("elman.tuning.contest._sample", lambda run: (run(), (1e-3, 0.0))[1])
    assert "not sure" not in run([*words, "--again"], capsys)[1]


@pytest.mark.parametrize("command", ["tune", "explain"])
def test_a_device_that_is_not_here_is_told(command, capsys, monkeypatch):
    """Before anything is measured there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, told = run([command, "gru", "--device", "cuda"], capsys)
    assert status == 2
    assert "torch can use no GPU here" in told
    status, told = run([command, "gru", "--device", "tpu"], capsys)
    assert status == 2
    assert "'tpu' is not one of" in told


@pytest.mark.gpu
def test_a_gpu_is_measured(capsys, nothing_known):
    """On the device that was asked for, and remembered for it alone."""
    words = ["tune", "gru", "--hidden", "16", "--shape", "5,2", "--device"]
    status, told = run([*words, "cuda"], capsys)
    assert status == 0
    assert "triton" in told
    assert "benchmarked before" in run([*words, "cuda"], capsys)[1]
    assert "benchmarked now" in run([*words, "cpu"], capsys)[1]


@pytest.mark.parametrize("shape", ["5", "5,x", "0,2", "5,2,1"])
def test_a_wrong_shape_is_told(shape, capsys):
    """With the form it should have."""
    status, told = run(["tune", "gru", "--shape", shape], capsys)
    assert status == 2
    assert "is not of the form 100,16" in told
