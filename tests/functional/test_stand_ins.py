"""Functions in the place of those of a package: a module of a few layers stands in for it."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType

import pytest
import torch
from torch import nn

from elman.errors import InputError, ShapeError
from elman.functional import gla, install, report, uninstall
from elman.functional.stand_ins import FUNCTIONS, METHODS, replaced, uninstall_modules

CODE = """
import torch
from torch import nn

class Kernel:  # what the package kernels makes of a function: without a __name__
    def __init__(self, function):
        self.function = function
    def __call__(self, *given):
        return self.function(*given)

def mamba2_chunk_scan(x):
    return x + 1

causal_conv1d_fn = Kernel(lambda x: x + 3)
other = len

class Mixer(nn.Module):
    def forward(self, x):
        return causal_conv1d_fn(mamba2_chunk_scan(x))

def torch_chunk_gated_delta_rule(x):
    return x + 2

def mamba2_selective_state_update(state, x, dt, A, B, C):
    return "theirs"

def rwkv_linear_attention(w, u, key, value, state=None, return_state=False):
    return "theirs"

class Steps(nn.Module):
    def forward(self, *given):
        return mamba2_selective_state_update(*given), rwkv_linear_attention(*given)

class Older(nn.Module):
    def __init__(self):
        super().__init__()
        self.rule = torch_chunk_gated_delta_rule
        self.act = torch.relu

class RecurrentGemmaRglru(nn.Module):
    def forward(self, x):
        return self._rnn_scan(x)
    def _rnn_scan(self, x):
        return x

class ZayaCCAProjection(nn.Module):
    pass

class TinyAttention(nn.Module):
    pass

class BeforeFunctions(nn.Module):
    def cuda_kernels_forward(self, x):
        return causal_conv1d_fn(x)
"""


@pytest.fixture
def package(monkeypatch):
    """A module with layers that call functions of it, keep one, and have a method."""
    module = ModuleType("transformers.models.tiny")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(CODE, vars(module))  # its classes belong to it
    layers = ("Mixer", "Older", "RecurrentGemmaRglru", "ZayaCCAProjection", "TinyAttention")
    return module, nn.Sequential(*(getattr(module, name)() for name in layers), nn.Linear(2, 2))


def test_functions_are_replaced_and_put_back(package):
    """In the module, in a layer and in a class; twice is once; each layer has a line."""
    module, model = package
    before, scan = dict(vars(module)), module.RecurrentGemmaRglru._rnn_scan
    assert report(model)["1"] == "Older, not replaced: elman.functional.install(model)"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = install(model)
    assert (
        install(model)
        == report(model)
        == said
        == {
            "0": "Mixer, on elman: causal_conv1d_fn, mamba2_chunk_scan",
            "1": "Older, on elman: torch_chunk_gated_delta_rule",
            "2": "RecurrentGemmaRglru, on elman: _rnn_scan",
            "3": "ZayaCCAProjection, left alone: two convolutions of torch's, without a loop",
            "4": "TinyAttention, left to torch: it has no recurrence",
        }
    )
    assert module.mamba2_chunk_scan is FUNCTIONS["mamba2_chunk_scan"]
    assert module.causal_conv1d_fn is FUNCTIONS["causal_conv1d_fn"]
    assert model[1].rule is FUNCTIONS["torch_chunk_gated_delta_rule"]
    assert module.RecurrentGemmaRglru._rnn_scan is METHODS["RecurrentGemmaRglru"][1]
    assert (module.other, model[1].act) == (len, torch.relu)
    names = ["_rnn_scan", "causal_conv1d_fn", "mamba2_chunk_scan", "torch_chunk_gated_delta_rule"]
    assert replaced() == names
    uninstall(model)
    uninstall(model)
    assert dict(vars(module)) == before
    assert model[1].rule is module.torch_chunk_gated_delta_rule
    assert module.RecurrentGemmaRglru._rnn_scan is scan
    uninstall(nn.Sequential(nn.ModuleList(), nn.Linear(2, 2)))
    install(model)
    uninstall_modules()
    assert replaced() == []


def test_single_steps_of_small_states_stay(package):
    """Without gradients: a call of ours would take longer. All others are ours."""
    module, _ = package
    install(module.Steps())
    update, rwkv = module.mamba2_selective_state_update, module.rwkv_linear_attention

    def of(size: int) -> dict[str, torch.Tensor]:
        state, x, B = torch.zeros(1, 2, size, size), torch.ones(1, 2, size), torch.ones(1, 1, size)
        return {"state": state, "x": x, "dt": x, "A": -state[0], "B": B, "C": B}

    def keys(steps: int) -> list[torch.Tensor]:
        return [-torch.ones(3), torch.ones(3), torch.ones(1, steps, 3), torch.ones(1, steps, 3)]

    with torch.no_grad():
        assert update(**of(4)) == rwkv(*keys(1)) == "theirs"
        assert update(**of(256)).shape == (1, 2, 256)
        assert rwkv(*keys(2))[0].shape == (1, 2, 3)
    assert update(**of(4)).shape == (1, 2, 4)
    assert rwkv(*keys(1))[0].shape == (1, 1, 3)
    uninstall(module.Steps())
    assert update is not module.mamba2_selective_state_update
    assert rwkv is not module.rwkv_linear_attention


def test_what_is_not_replaced_is_said(package, monkeypatch):
    """A model without such layers, with one that is left alone, and of somebody else."""
    module, model = package
    with pytest.warns(UserWarning, match="replaced nothing in Linear: none of its layers has"):
        assert install(nn.Linear(2, 2)) == {}
    with pytest.warns(
        UserWarning, match="replaced nothing in Sequential: 0: ZayaCCAProjection, le"
    ):
        install(nn.Sequential(model[3]))
    with pytest.warns(UserWarning, match="replaced nothing in Sequential: 0: BeforeF.*5.15 has"):
        install(nn.Sequential(module.BeforeFunctions()))
    monkeypatch.setattr(type(model[0]), "__module__", __name__)
    with pytest.warns(UserWarning, match="replaced nothing"):
        install(model[0])
    assert module.mamba2_chunk_scan(1) == 2


def test_options_of_models_are_dropped():
    """What a model passes along is not for the function; misspelled ones of a user are refused."""
    q, k, v = (torch.ones(1, 2, 1, 3) for _ in range(3))
    gates = {"g": -torch.ones(1, 2, 1), "beta": torch.ones(1, 2, 1)}
    rule = FUNCTIONS["torch_chunk_gated_delta_rule"]
    out, last = rule(q, k, v, **gates, use_cache=True, output_final_state=True)
    assert (out.shape, last.shape) == (v.shape, (1, 1, 3, 3))
    ends = torch.tensor([0, 1, 2], dtype=torch.int32)  # by transformers' name
    with pytest.warns(UserWarning, match="with a cache: .* pass use_cache=False"):
        _, last = rule(q, k, v, **gates, cu_seq_lens_q=ends, output_final_state=True)
    assert last.shape == (2, 1, 3, 3)
    two = [torch.cat((value, value)) for value in (q, k, v, *gates.values())]
    with pytest.raises(ShapeError, match=r"cu_seq_lens_q\) lie in one row"):
        rule(*two, cu_seqlens=ends)
    with pytest.raises(InputError, match="there is no option use_cache=True"):
        gla(q, k, v, -k, use_cache=True)


@pytest.mark.parametrize("told", ["seq_idx", "cu_seq_lens_q"])
def test_documents_that_are_told_to_a_part_of_a_layer(told):
    """A convolution and a rule that disagree mix documents, which nothing else would say."""
    missing = {"seq_idx": "cu_seq_lens_q", "cu_seq_lens_q": "seq_idx"}[told]
    q, k, v = (torch.ones(1, 4, 1, 3) for _ in range(3))
    rule, convolution = FUNCTIONS["torch_chunk_gated_delta_rule"], FUNCTIONS["causal_conv1d_fn"]
    where = {
        "seq_idx": torch.tensor([[0, 0, 1, 1]], dtype=torch.int32),
        "cu_seq_lens_q": torch.tensor([0, 2, 4]),
    }

    def layer(names: list[str]) -> None:
        chosen = {name: where[name] for name in names}
        convolution(torch.ones(1, 3, 4), torch.ones(3, 2), **chosen)
        rule(q, k, v, torch.zeros(1, 4, 1), torch.ones(1, 4, 1), **chosen)

    layer([])
    layer([*where])
    with pytest.warns(UserWarning, match=f"documents are mixed: pass {missing}=, too"):
        layer([told])
    layer([*where])
