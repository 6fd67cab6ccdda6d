"""Functions in the place of those of a package: a module of two layers stands in for it."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType

import pytest
import torch
from torch import nn

from elman.functional import gated_delta_rule, install, mamba2_scan, uninstall
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
    assert module.mamba2_chunk_scan is mamba2_scan
    assert model[0].rule is gated_delta_rule
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


def test_each_has_another_name():
    """A function of elman's is not taken for one of theirs."""
    assert not {function.__name__ for function in STAND_INS.values()} & STAND_INS.keys()
