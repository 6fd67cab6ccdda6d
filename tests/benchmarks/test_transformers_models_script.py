"""The script that compares whole models: a tiny one stands in for transformers."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from torch import nn

from benchmarks import studied
from benchmarks.rows import read_rows
from benchmarks.scripts import transformers_models as script


class Tiny(nn.Module):
    """A model whose logits are changed by what is installed."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(500, 500)

    def forward(self, input_ids, labels):
        logits = self.table(input_ids) * self.factor
        return SimpleNamespace(logits=logits, loss=logits.square().mean())

    def generate(self, tokens, **options):
        return tokens


@pytest.fixture
def tiny(monkeypatch):
    """One model type, of a package that is not there."""
    package = ModuleType("transformers")
    package.CONFIG_MAPPING = {"tiny": dict}
    package.AutoModelForCausalLM = SimpleNamespace(from_config=lambda config, **_: Tiny())
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.setitem(sys.modules, "fla", None)
    monkeypatch.setattr(script.metadata, "version", lambda name: "0")
    monkeypatch.setattr(script, "MODELS", {"tiny": {}})


def test_to_the_end(tiny, capsys, tmp_path, monkeypatch):
    """A line, a row and the table of the page."""
    out = tmp_path / "rows.jsonl"
    script.main(["--out", str(out), "--steps", "5"])
    assert '"tiny"' in capsys.readouterr().out
    rows = read_rows(out)
    assert (rows["tiny"]["logits"], rows["tiny"]["same text"]) == (0.0, True)
    monkeypatch.setattr(studied, "script_rows", lambda name: rows)
    assert "| `tiny` | 0.0e+00 | 0.0e+00 | the same |" in studied.transformers_models()


def test_what_differs_is_named(tiny, monkeypatch):
    """With a status that is no success."""

    def install(model):
        model.factor = 1.1
        return model

    monkeypatch.setattr(script, "install", install)
    with pytest.raises(SystemExit, match="different: tiny"):
        script.main(["--steps", "5"])


def test_without_the_package(monkeypatch, capsys):
    """What to install is said."""

    def absent(name):
        raise script.metadata.PackageNotFoundError

    monkeypatch.setattr(script.metadata, "version", absent)
    script.main([])
    assert "pip install transformers" in capsys.readouterr().out
