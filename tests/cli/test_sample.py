"""What is done with a trained model from the command line."""

from __future__ import annotations

import pytest
from torch import nn

import elman as library
from elman.train.loop.task import Trained
from elman.train.run import loading
from run_folders import small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a small run."""
    return small_run(tmp_path_factory.mktemp("run"))


def test_sample(elman, run):
    """The prompt, and the text that the library gives; no prompt that is white space alone."""
    code, said, _ = elman("sample", str(run), "--length=30", "--prompt=cat", "--seed=7")
    assert code == 0
    assert said == "cat" + library.load(run).sample(30, prompt="cat", seed=7) + "\n"
    _, said, _ = elman("sample", str(run), "--length=30", "--seed=7")
    assert said == library.load(run).sample(30, seed=7) + "\n"


def test_words(elman, tmp_path):
    """A space stands between the prompt and the words that follow."""
    run = small_run(tmp_path, level="word")
    _, said, _ = elman("sample", str(run), "--length=5", "--prompt=the cat", "--seed=7")
    assert said == "the cat " + library.load(run).sample(5, prompt="the cat", seed=7) + "\n"


def test_last_weights(elman, run, tmp_path, monkeypatch):
    """Both commands say which weights they want."""
    asked = []
    plain = loading.weights_of
    monkeypatch.setattr(loading, "weights_of", lambda *a: asked.append(a[1]) or plain(*a))
    for more in ([], ["--last"]):
        elman("sample", str(run), "--length=3", *more)
        elman("export", str(run), f"--c={tmp_path / 'c'}", *more)
    assert asked == ["best", "best", "last", "last"]


@pytest.fixture
def other(run, monkeypatch):
    """In place of the run, one whose model is no language model."""
    model = nn.Module()
    model.layers = nn.ModuleList([library.GRU(4, 8)])
    found = Trained(run, library.load(run).config, 0, model, None)
    for command in ("sample", "export"):
        monkeypatch.setattr(f"elman.cli.{command}.load", lambda path, **_: found)
    return found


def test_only_texts_are_written(elman, run, other):
    """Of another model it is said what loads it."""
    code, _, err = elman("sample", str(run))
    assert code == 1
    assert f'elman.load("{run}")' in err


def test_export_of_a_run(elman, run, tmp_path):
    """Its recurrent layers without being told their sizes: the C that the library writes."""
    code, said, _ = elman("export", str(run), f"--c={tmp_path / 'c'}")
    assert code == 0
    assert "x [4] and gives y [8]" in said
    library.export.to_c(library.load(run).layers, tmp_path / "again")
    ours, again = ((tmp_path / name / "model_weights.h").read_text() for name in ("c", "again"))
    assert ours == again


def test_export_of_a_run_has_its_sizes(elman, run, tmp_path):
    """They are not told twice; a folder that is no run is told as such."""
    code, _, err = elman("export", str(run), f"--c={tmp_path}", "--hidden=8", "--weights=x")
    assert code == 2
    assert "leave --hidden --weights out" in " ".join(err.replace("│", " ").split())
    code, _, err = elman("export", str(tmp_path / "none"), f"--c={tmp_path}")
    assert code == 1
    assert "this is not a run folder" in err


def test_layers_with_matrix_states(elman, run, other, tmp_path):
    """They are told, with what runs the model."""
    other.model.layers = library.layers.Stack("gla", 4, 8)
    code, _, err = elman("export", str(run), f"--c={tmp_path}")
    assert code == 1
    assert "norms between its recurrent layers" in err
    assert f'elman.load("{run}").layers.blocks[0].layer.cell' in err


def test_layers_with_norms_between(elman, run, other, tmp_path):
    """They are told, with how they are written one by one."""
    code, _, err = elman("export", str(run), f"--c={tmp_path}")
    assert code == 1
    assert ".layers.layers[0]" in err
