"""The script that compares layers of flash-linear-attention: a tiny package stands in for it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks.rows import read_rows
from benchmarks.scripts import fla_layers as script


class Cache:
    last = 0.0


class Tiny(nn.Module):
    """A layer that sums what its rule makes of the steps."""

    rule = staticmethod(torch.sin)

    def __init__(self, hidden_size, layer_idx):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))

    def forward(self, x, past_key_values=None, use_cache=False, cu_seqlens=None):
        y = sys.modules["fla.layers.tiny"].rule(x * self.weight)
        parts = [y] if cu_seqlens is None else y.split(cu_seqlens.diff().tolist(), 1)
        out = torch.cat([part.cumsum(1) for part in parts], 1)
        if past_key_values is not None:
            out = out + past_key_values.last
            past_key_values.last = out[:, -1:]
        return out, None, past_key_values


class TinyModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.table = nn.Embedding(config["vocab_size"], 5)

    def forward(self, input_ids, labels=None, past_key_values=None, use_cache=False):
        logits = self.table(input_ids)
        return SimpleNamespace(logits=logits, loss=logits.square().mean(), past_key_values=Cache())


@pytest.fixture
def tiny(monkeypatch):
    """One layer and one model of a package that is not there."""
    layers, models = ModuleType("fla.layers.tiny"), ModuleType("fla.models")
    layers.Tiny, layers.rule = Tiny, torch.sin
    models.TinyConfig, models.TinyForCausalLM = dict, TinyModel
    utils = ModuleType("fla.models.utils")
    utils.Cache = Cache
    for module in (layers, models, utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(script.metadata, "version", lambda name: "0")
    monkeypatch.setattr(script.functional.fla, "install", lambda: None)
    case = script.Case("tiny", "Tiny", "rule", torch.sin, {}, {}, "Tiny")
    monkeypatch.setattr(script, "CASES", {"tiny": case})


def test_to_the_end(tiny, capsys, tmp_path):
    """A line and a row."""
    out = tmp_path / "rows.jsonl"
    script.main(["--out", str(out), "--seconds", "0.01"])
    assert '"tiny"' in capsys.readouterr().out
    row = read_rows(out)["tiny"]
    assert (row["outputs"], row["gradient"], row["model"]) == (0.0, 0.0, 0.0)
    assert max(row["packed"], row["steps"]) < 1e-6
    assert row["gradient norm"] > 0
    assert set(row["seconds"]) == {"naive", "elman"}


def test_what_differs_is_named(tiny, monkeypatch):
    """With a status that is no success."""
    case = script.CASES["tiny"]._replace(reference=torch.cos)
    monkeypatch.setattr(script, "CASES", {"tiny": case})
    with pytest.raises(SystemExit, match="different: tiny"):
        script.main([])


def test_without_the_package(monkeypatch, capsys):
    """What to install is said."""

    def absent(name):
        raise script.metadata.PackageNotFoundError

    monkeypatch.setattr(script.metadata, "version", absent)
    script.main([])
    assert "pip install flash-linear-attention" in capsys.readouterr().out
