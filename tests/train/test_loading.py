"""A trained model back from its folder: as it was, without its data, or a reason why not."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import elman
from elman.errors import InputError, RunError
from elman.train.loop.task import Trained
from elman.train.tasks.text.config import TextConfig
from elman.train.tasks.text.model import TextSpec, TrainedText
from run_folders import changed, small_run


@pytest.fixture
def short(small_config):
    """A run of two steps."""
    return dataclasses.replace(small_config, steps=2, engine="reference", validate_every=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a complete run."""
    return small_run(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def folder(whole, tmp_path):
    """A copy of it."""
    return shutil.copytree(whole, tmp_path / "run")


@pytest.mark.parametrize("options", [{}, {"level": "word", "cell": "lstm", "tie": True}])
def test_writes_what_the_run_wrote(short, train, tmp_path, options):
    """Its sample, token for token, where neither the data nor the folder's place is as it was."""
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox\njumps over the lazy dog\n" * 60)
    sizes = {"embedding": 12, "batch": 4, "bptt": 8} if options else {}
    outcome = train(dataclasses.replace(short, data=str(text), **sizes, **options))
    text.unlink()
    moved = shutil.copytree(outcome.folder.path, tmp_path / "moved")
    drawn = torch.get_rng_state()
    run = elman.load(str(moved))

    assert run.sample() == outcome.result["sample"]
    assert torch.equal(torch.get_rng_state(), drawn)
    assert run.step == 2
    assert not run.model.training
    assert run.vocabulary.decode(run.vocabulary.encode("the")) == "the"
    assert run.sample(4, temperature=0.0, prompt="fox") != run.sample(4, seed=3, temperature=9.0)


def test_the_file_is_left_as_it_is(folder):
    """A run that still trains may be writing a checkpoint: nothing of it is removed."""
    half = folder / "checkpoints" / ".incomplete-1-step-000000009"
    half.mkdir()
    elman.load(folder)
    assert half.exists()


@pytest.mark.parametrize(
    "options", [{"prompt": ""}, {"temperature": -1.0}, {"length": -1}, {"temperature": math.nan}]
)
def test_wrong_draws(options):
    """What cannot be drawn is said, before the model is asked."""
    run = TrainedText(Path(), TextConfig(), 0, nn.Identity(), TextSpec(["a", "\n"]))
    with pytest.raises(InputError, match=r"empty|at least 0"):
        run.sample(**options)


def test_outputs_that_are_not_finite(folder):
    """Nothing can be drawn from them, which is said."""
    run = elman.load(folder)
    with torch.no_grad():
        run.weight.fill_(torch.nan)
    with pytest.raises(RunError, match="no token can be drawn"):
        run.sample(3)


def wrong(folder, file, content):
    """Why a folder cannot be loaded whose file has another content, or is gone."""
    path = folder / file
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(RunError) as refused:
        elman.load(folder)
    return str(refused.value)


@pytest.mark.parametrize(
    "file, content, said",
    [
        ("model.json", None, "model.json: it is missing"),
        ("model.json", "{}", "model.json: tokens is missing"),
        ("model.json", '{"tokens": ["a"]}', "the weights are of another model"),
        ("config.json", "[]", "config.json: expected an object"),
    ],
)
def test_damage_is_named(folder, file, content, said):
    """The file and what is wrong with it; a damaged result is no matter."""
    (folder / "result.json").write_text("{")
    assert isinstance(elman.load(folder), Trained)
    assert said in wrong(folder, file, content)


CELL = """
from elman import cell, ops
@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def mine(x, h, W, R):
    return ops.tanh(W @ x + R @ h)
"""


def test_a_formula_that_changed(short, train, resume, tmp_path):
    """The weights of one formula are not run by another that takes the same ones."""
    file = tmp_path / "mine.py"
    file.write_text(CELL)
    path = train(dataclasses.replace(short, cell=f"{file}:mine")).folder.path
    file.write_text(f"# moved\n{CELL}")  # the same formula
    assert isinstance(elman.load(path, trust=True), Trained)
    file.write_text(CELL.replace("tanh", "sigmoid"))
    (path / "result.json").unlink()
    for again in (elman.load, resume):
        with pytest.raises(RunError, match=r"the cell of the run has changed(.|\n)*hint"):
            again(path, trust=True)
    changed(path / "model.json", "formula", "")  # as earlier runs have it
    assert isinstance(elman.load(path, trust=True), Trained)


def test_no_weights(folder):
    """No checkpoint at all, none that is whole, no run."""
    for path in (folder / "checkpoints").glob("*/tensors.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunError, match="a checkpoint is damaged"):
        elman.load(folder)
    with pytest.raises(RunError, match="no checkpoint of the run is whole"):
        elman.load(folder, weights="last")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(RunError, match=r"has no checkpoint(.|\n)*hint  elman resume"):
        elman.load(folder)
    with pytest.raises(RunError, match="this is not a run folder"):
        elman.load(folder / "none")
    told = f"run folders in it\n  hint  {folder}"
    with pytest.raises(RunError, match=f"not a run folder(.|\n)*{re.escape(told)}$"):
        elman.load(folder.parent)


def test_a_newer_version_is_named(folder):
    """Where it wrote what cannot be read, and only there."""
    changed(folder / "facts.json", "machine.elman", "0.10.0")
    elman.load(folder)
    config = json.loads((folder / "config.json").read_text()) | {"gyros": 3}
    said = wrong(folder, "config.json", json.dumps(config))
    assert "a newer elman wrote this run" in said
    assert f"0.10.0 then, {elman.__version__} here" in said
    assert "gyros" in said
    changed(folder / "facts.json", "machine.elman", "0.0.9")
    assert "a newer elman" not in wrong(folder, "config.json", json.dumps(config))
