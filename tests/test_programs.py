"""elman in programs that build their own models: functions of a package, and trainers' callbacks.

Modules with the names of the packages stand in for them.
"""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import elman
from elman import programs
from elman.errors import MissingPackageError
from elman.functional.stand_ins import FUNCTIONS


def mamba2_chunk_scan(x):
    return x + 1


class Hooks:
    """A class of callbacks."""

    state_key = "key"


@pytest.fixture
def transformers(monkeypatch):
    """The package, with a model of one layer."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 4)
            self.scan = vars(module)["mamba2_chunk_scan"]

        def forward(self, x):
            return mamba2_chunk_scan(x)

    package: Any = ModuleType("transformers")
    module: Any = ModuleType("transformers.models.tiny")
    package.TrainerCallback = Hooks
    module.mamba2_chunk_scan = mamba2_chunk_scan
    Mixer.__module__ = module.__name__
    monkeypatch.setitem(sys.modules, "transformers", package)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(programs, "find_spec", lambda name: name == "transformers" or None)
    return module, Mixer


def test_functions_of_models_that_are_built(transformers):
    """In its module and its layers; put back, whether the model is there or not."""
    module, mixer = transformers
    elman.install()
    try:
        model: Any = nn.Sequential(mixer(), nn.LSTMCell(3, 4))
        assert module.mamba2_chunk_scan is FUNCTIONS["mamba2_chunk_scan"]
        assert model[0].scan is FUNCTIONS["mamba2_chunk_scan"]
        model[0].rnn(torch.randn(5, 2, 3))
        ran, alone, functions = programs.summary()
        assert "1 torch.nn.GRU, engine auto: " in ran
        assert alone == "left alone: torch.nn.LSTMCell: elman.LSTM takes all steps at once"
        assert functions == "functions replaced: mamba2_chunk_scan"
    finally:
        elman.uninstall()
    assert model[0].scan is module.mamba2_chunk_scan is mamba2_chunk_scan
    assert programs.summary()[2] == "functions replaced: none"


def test_a_trainer_of_transformers(transformers):
    """Layers and functions of its model."""
    module, mixer = transformers
    callback: Any = elman.AccelerateTrainer()
    assert isinstance(callback, Hooks)
    model: Any = nn.Sequential(mixer())
    callback.on_init_end(None, None, None, model=model, train_dataloader=None)
    assert type(model[0].rnn) is elman.GRU
    assert model[0].scan is FUNCTIONS["mamba2_chunk_scan"]
    elman.functional.uninstall(model)
    assert module.mamba2_chunk_scan is mamba2_chunk_scan


@pytest.mark.parametrize(
    "names", [["lightning"], ["pytorch_lightning"], ["lightning", "pytorch_lightning"]]
)
def test_a_trainer_of_lightning(monkeypatch, names):
    """One callback for both packages."""
    kinds = [type(name, (Hooks,), {}) for name in names]
    for name, kind in zip(names, kinds, strict=True):
        package: Any = ModuleType(name)
        package.Callback = kind
        monkeypatch.setitem(sys.modules, name, package)
        monkeypatch.setitem(sys.modules, f"{name}.pytorch", package)
    monkeypatch.setattr(programs, "find_spec", lambda name: name in names or None)
    callback: Any = elman.Accelerate()
    assert all(isinstance(callback, kind) for kind in (*kinds, elman.Accelerate))
    assert callback.state_key == "key"
    model = nn.Sequential(nn.GRU(3, 4))
    callback.setup(None, model, "fit")
    callback.setup(None, model, "validate")
    assert type(model[0]) is elman.GRU
    assert isinstance(pickle.loads(pickle.dumps(callback)), kinds[0])


@pytest.mark.parametrize(
    "kind, packages",
    [("Accelerate", "lightning or pytorch_lightning"), ("AccelerateTrainer", "transformers")],
)
def test_without_the_package(monkeypatch, kind, packages):
    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=f"elman.{kind} needs the package {packages}$"):
        getattr(elman, kind)()
