"""`elman train` and `elman runs`, as a user types them."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest

from elman import load
from elman.export import to_c
from elman.train.loop.loop import StopRequest

SMALL = (
    *("--hidden=8", "--embedding=4", "--layers=1", "--batch=4", "--bptt=8", "--steps=6"),
    *("--validation-chars=100", "--engine=aten", "--accelerator=cpu", "--threads=1"),
    "--minutes=0.01",
)


@pytest.fixture
def data(tmp_path):
    """A folder of three text files."""
    folder = tmp_path / "data"
    folder.mkdir()
    draw = random.Random(0)
    for name in "abc":
        (folder / f"{name}.txt").write_text("".join(draw.choices("the cat\n", k=900)))
    return folder


def test_train_report_and_runs(elman, tmp_path, data):
    """One command makes a run with a report; `runs` lists it; two runs are compared."""
    out = f"--out={tmp_path / 'runs'}"
    code, said, _ = elman("train", f"--data={data}", out, *SMALL)
    assert code == 0
    for word in ("trigram", "accuracy", "torch.nn.GRU", "characters/s", "report.html"):
        assert word in said
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "report.html").read_text().startswith("<!doctype html>")

    assert elman("train", f"--data={data}", out, *SMALL, "--lr=0.1", "--no-compare")[0] == 0
    code, said, _ = elman("runs", out)
    assert code == 0
    assert folder.name in said
    assert said.count("6/6") == 2

    code, said, _ = elman("runs", *map(str, sorted((tmp_path / "runs").iterdir())))
    assert "differs in" in said
    assert "0.1" in said


def test_train_on_words(elman, without_charts, tmp_path, data):
    """A preset's settings but for what is given; perplexities on the screen and in the list."""
    out = f"--out={tmp_path / 'runs'}"
    small = [option for option in SMALL if "minutes" not in option]
    code, said, _ = elman("train", "text", "--preset=small", f"--data={data}", out, *small)
    assert code == 0
    for word in ("trigram", "perplexity", "torch.nn.LSTM", "words/s"):
        assert word in said
    (folder,) = (tmp_path / "runs").iterdir()
    config = json.loads((folder / "config.json").read_text())
    assert [config[name] for name in ("level", "hidden", "lr", "epochs")] == ["word", 8, 20, None]
    assert "perplexity" in elman("runs", out)[1]
    assert "perplexity" in (folder / "report.html").read_text()


def test_blocks_of_a_gru(elman, without_charts, tmp_path, data):
    """`--norm`: what is said of a run of them, and which part of it can be exported."""
    out, small = f"--out={tmp_path / 'runs'}", [w for w in SMALL if "engine" not in w]
    words = ("train", "text", f"--data={data}", out, *small, "--engine=reference", "--norm")
    code, said, _ = elman(*words)
    assert code == 0
    assert "torch.nn has no residual layers" in said
    (folder,) = (tmp_path / "runs").iterdir()
    code, _, err = elman("export", str(folder), f"--c={tmp_path / 'c'}")
    assert code == 1
    assert "the run has norms between its recurrent layers" in err
    run = load(folder)
    assert f'elman.load("{folder}").layers.blocks[0].layer.cell' in err
    assert to_c(run.layers.blocks[0].layer.cell, tmp_path / "layer").weights
    code, _, err = elman(*words, "--residual")
    assert code == 1
    assert "a block of gru has no option residual" in err


def test_interrupted_run_is_listed_and_resumed(elman, without_charts, tmp_path, data, monkeypatch):
    """Ctrl-C exits with 130; the run is listed with its step; `elman resume` completes it."""
    steps = itertools.count(1)
    monkeypatch.setattr(StopRequest, "__bool__", lambda self: next(steps) == 4)
    out = f"--out={tmp_path / 'runs'}"
    code, said, _ = elman("train", f"--data={data}", out, *SMALL, "--log-every=1")
    assert code >= 128
    assert "elman resume" in said
    (folder,) = (tmp_path / "runs").iterdir()
    assert "4/6" in elman("runs", out)[1]
    monkeypatch.undo()

    code, said, _ = elman("resume", str(folder), "--no-compare")
    assert code == 0
    assert "resumed at step 4 of 6" in said
    assert (folder / "report.html").exists()


def test_runs_without_any(elman, tmp_path):
    """No runs: a line that says how to make one."""
    code, said, _ = elman("runs", f"--out={tmp_path}")
    assert code == 0
    assert "elman train makes one" in said


def test_train_series_and_resume(elman, without_charts, tmp_path):
    """A task of its own options; its report shows the held-out data by class; runs lists both."""
    for half in ("TRAIN", "TEST"):
        lines = [f"{k % 2}\t{k % 2 + 0.1 * k}\t{k % 2}\n" for k in range(9)]
        (tmp_path / f"A_{half}.tsv").write_text("".join(lines))
    out = f"--out={tmp_path / 'runs'}"
    small = ("--hidden=4", "--steps=4", "--engine=aten", "--accelerator=cpu", "--threads=1")
    code, said, _ = elman("train", "series", str(tmp_path), out, *small, "--minutes=0.01")
    assert code == 0
    assert "largest class" in said
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-series")
    assert "Held-out data" in (folder / "report.html").read_text()
    code, said, _ = elman("resume", str(folder))
    assert code == 0
    assert "complete" in said
    assert "nats" in elman("runs", out)[1]


def test_train_on_numbers(elman, without_charts, tmp_path):
    """Loss and R² on the screen and in the list; options of the optimizer are stored."""
    x = np.random.default_rng(0).normal(0, 1, (20, 6, 2))
    arrays = {"x": x, "y": x.sum(2, keepdims=True)}
    path, out = tmp_path / "data.npz", f"--out={tmp_path / 'runs'}"
    np.savez(path, **{f"{k}_{half}": v for k, v in arrays.items() for half in ("train", "test")})
    small = ("--hidden=4", "--steps=4", "--batch=5", "--engine=aten", "--accelerator=cpu")
    ways = ("--optimizer=sgd", "--momentum=0.9", "--nesterov", "--schedule=linear", "--lr=0.1")
    words = ("train", "regression", str(path), out, *small, *ways, "--threads=1", "--no-compare")
    code, said, _ = elman(*words)
    assert code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert '"nesterov": true' in (folder / "config.json").read_text()
    for text in (said, elman("runs", out)[1]):
        assert "squared error" in text
        assert "R² " in text


@pytest.mark.parametrize(
    "words, reason",
    [
        (("regression",), "the task regression needs data"),
        (("regression", "none.npz"), "the data file does not exist"),
        (("--data=none.txt",), "does not exist"),
        (("--optimizer=adam",), "optimizer must be one of adamw, sgd, not adam"),
        (("--schedule=step",), "schedule must be one of cosine, linear, constant, or"),
    ],
)
def test_mistakes_are_told_in_a_line(elman, tmp_path, words, reason):
    """Exit 1, and no run folder."""
    code, _, err = elman("train", *words, f"--out={tmp_path / 'runs'}")
    assert code == 1
    assert reason in err
    assert not (tmp_path / "runs").exists()


def test_options_before_a_task_are_refused(elman):
    """They would be read as the character model's."""
    code, _, err = elman("train", "--lr=1", "series", "nowhere")
    assert code == 1
    assert "elman train series --lr …" in err


def test_help_of_a_task(elman):
    """Options are the fields of its configuration, with their words."""
    said = elman("train", "images", "--help")[1]
    common = ("--optimizer", "--momentum", "--nesterov", "--schedule")
    for word in ("--permute", "--residual", "--heads", "Read the pixels", *common):
        assert word in said
    assert "--bptt" not in said
    assert "--bptt" in elman("train", "--help")[1]
