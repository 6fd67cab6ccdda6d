"""Functions in the place of those of a package: a module of two layers stands in for it."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType

import pytest
import torch
from torch import nn

from elman.errors import InputError
from elman.functional import gla, install, uninstall
from elman.functional.stand_ins import STAND_INS


def mamba2_chunk_scan(x):
    return x + 1


def torch_chunk_gated_delta_rule(x):
    return x + 2


@pytest.fixture
def package(monkeypatch):
    """A layer that calls a function of its module, and one that keeps a function."""

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.rule = torch_chunk_gated_delta_rule
            self.act = torch.relu

    module = ModuleType("transformers.models.tiny")
    module.mamba2_chunk_scan = mamba2_chunk_scan
    module.other = len
    Mixer.__module__ = module.__name__
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module, nn.Sequential(Mixer(), nn.Linear(2, 2))


def test_functions_are_replaced_and_put_back(package):
    """In the module and in the layer; twice is once."""
    module, model = package
    assert install(install(model)) is model
    assert module.mamba2_chunk_scan is STAND_INS["mamba2_chunk_scan"]
    assert model[0].rule is STAND_INS["torch_chunk_gated_delta_rule"]
    assert (module.other, model[0].act) == (len, torch.relu)
    assert uninstall(model) is model
    assert module.mamba2_chunk_scan is mamba2_chunk_scan
    assert model[0].rule is torch_chunk_gated_delta_rule
    assert not any("elman" in name for name in (*vars(module), *vars(model[0])))
    uninstall(model)
    assert module.mamba2_chunk_scan is mamba2_chunk_scan


def test_modules_of_others_stay(package, monkeypatch):
    """Only those of the package are changed, whatever a function is called."""
    module, model = package
    monkeypatch.setattr(type(model[0]), "__module__", __name__)
    install(model)
    assert isinstance(mamba2_chunk_scan, FunctionType)
    assert module.mamba2_chunk_scan is mamba2_chunk_scan


def test_options_of_models_are_dropped():
    """What a model passes along is not for the function; misspelled ones of a user are refused."""
    q, k, v = (torch.ones(1, 2, 1, 3) for _ in range(3))
    gates = {"g": -torch.ones(1, 2, 1), "beta": torch.ones(1, 2, 1)}
    rule = STAND_INS["torch_chunk_gated_delta_rule"]
    out, last = rule(q, k, v, **gates, use_cache=True, output_final_state=True)
    assert (out.shape, last.shape) == (v.shape, (1, 1, 3, 3))
    with pytest.raises(InputError, match="there is no option use_cache=True"):
        gla(q, k, v, -k, use_cache=True)
