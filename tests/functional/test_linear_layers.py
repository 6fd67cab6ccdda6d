"""Linear layers whose weights are read in few bits."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from elman.engines.c import few_rows
from elman.errors import EngineError, InputError
from elman.functional import install, uninstall
from elman.functional.linear_layers import MOST_ROWS, TYPES, FewRowsLinear, copy_of
from helpers import need_engine


def exact(layer: nn.Linear, x: Tensor, dtype: torch.dtype) -> Tensor:
    """What a layer with such weights computes, in float64."""
    weight, scale = copy_of(layer.weight.detach(), dtype)
    wide = weight.double() if scale is None else weight.double() * scale.double()[:, None]
    out = x.double() @ wide.T
    return out if layer.bias is None else out + layer.bias.detach().double()


def installed(model: nn.Module, weights: str) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing recurs in it
        return install(model, weights=weights)


@given(
    rows=st.integers(1, MOST_ROWS),
    inputs=st.sampled_from((1, 7, 8, 31, 64, 130)),
    outputs=st.sampled_from((1, 3, 8, 17, 300)),
    bias=st.booleans(),
    kind=st.sampled_from([*TYPES.items()]),
)
def test_few_rows(rows, inputs, outputs, bias, kind) -> None:
    """Sizes that fill no vectors; one thread and several."""
    need_engine("c")
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias)
    x, (name, dtype) = torch.randn(rows, inputs), kind
    assert installed(layer, name) == {"": f"Linear, weights in {name} for up to 16 rows"}
    with torch.no_grad():
        got = layer(x)
    want = exact(layer, x, dtype)
    assert torch.allclose(got.double(), want, rtol=1e-5, atol=1e-5 * float(want.abs().max()))


@pytest.mark.parametrize("name", TYPES)
def test_several_threads(name) -> None:
    """A layer that is worth more than one."""
    need_engine("c")
    layer = nn.Linear(600, 1001)
    installed(layer, name)
    x = torch.randn(2, 4, 600)
    with torch.no_grad():
        got = layer(x)
    assert torch.allclose(got.double(), exact(layer, x, TYPES[name]), atol=1e-5)


def test_all_else_is_torchs() -> None:
    """Many rows, gradients, autocast, and layers of other classes."""

    class Mine(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(8, 8), Mine(8, 8))
    report = installed(model, "int8")
    assert report["1"] == "Mine, left alone: a class derived from Linear"
    layer, x = model[0], torch.randn(MOST_ROWS + 1, 8)
    plain = nn.functional.linear(x, layer.weight, layer.bias)
    with torch.no_grad():
        assert torch.equal(layer(x), plain)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x[:2]).dtype is torch.bfloat16
        for wrong in (x[:2, :7], x[:2].long(), x[:2].double(), x[0, 0]):
            with pytest.raises(RuntimeError):
                layer(wrong)
    assert torch.equal(layer(x[:2]), nn.functional.linear(x[:2], layer.weight, layer.bias))
    layer(x).sum().backward()
    assert layer.weight.grad is not None


def test_weights_that_change_are_held_again() -> None:
    """In place, as by an optimizer, and others in their place."""
    need_engine("c")
    layer, x = nn.Linear(8, 4), torch.randn(1, 8)
    installed(layer, "bf16")
    with torch.no_grad():
        for change in (
            lambda: layer.weight.mul_(2),
            lambda: setattr(layer, "weight", nn.Parameter(torch.randn(4, 8))),
        ):
            layer(x)
            change()
            got = layer(x).double()
            assert torch.allclose(got, exact(layer, x, torch.bfloat16), atol=1e-5)


def test_copies_and_the_way_back() -> None:
    """Copies and pickles run as well; the state_dict is torch's; uninstall gives the class back."""
    model = nn.Sequential(nn.Linear(8, 4))
    keys, x = [*model.state_dict()], torch.randn(1, 8)
    installed(model, "int8")
    with torch.no_grad():
        out = model(x)
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert type(again[0]) is FewRowsLinear
            assert torch.equal(again(x), out)
    assert [*model.state_dict()] == keys
    uninstall(model)
    assert type(model[0]) is nn.Linear
    assert {*vars(model[0])} == {*vars(nn.Linear(8, 4))}


def test_half_precision() -> None:
    """A model in bfloat16 gets bfloat16 back."""
    need_engine("c")
    layer, x = nn.Linear(8, 4).bfloat16(), torch.randn(1, 8).bfloat16()
    installed(layer, "int8")
    with torch.no_grad():
        out = layer(x)
    assert out.dtype is torch.bfloat16
    assert torch.allclose(out.double(), exact(layer, x, torch.int8), rtol=0.02, atol=0.02)


def test_a_weight_at_the_address_of_another() -> None:
    """A copy is of a parameter, not of an address."""
    need_engine("c")
    layer, x = nn.Linear(64, 64, bias=False), torch.randn(1, 64)
    installed(layer, "int8")
    with torch.no_grad():
        layer(x)
        memory = layer.weight.detach().clone()
        layer.weight = nn.Parameter(memory)
        layer(x)
        vars(layer)["_copy"] = vars(layer)["_copy"]._replace(
            state=(memory.data_ptr(), layer.weight._version)
        )
        layer.weight = nn.Parameter(memory)  # another parameter, the same address and version
        memory.view(-1).numpy()[:] = 1.0  # as other memory would, without a new version
        assert torch.allclose(layer(x).double(), exact(layer, x, torch.int8), atol=1e-5)


def test_what_is_no_number() -> None:
    """An output of weights that are infinite or NaN is none either."""
    need_engine("c")
    layer, x = nn.Linear(8, 3), torch.randn(1, 8)
    with torch.no_grad():
        layer.weight[0, 3], layer.weight[1, 2] = float("nan"), float("inf")
        installed(layer, "int8")
        out = layer(x)
    assert out.isfinite().tolist() == [[False, False, True]]


def test_without_a_compiler(monkeypatch) -> None:
    """Whoever asks for it is told."""
    monkeypatch.setattr(few_rows, "find_compiler", lambda: "there is none")
    with pytest.raises(EngineError, match="need a C compiler: there is none"):
        install(nn.Linear(2, 2), weights="int8")


def test_double_precision_stays() -> None:
    """Its layers are left alone, and listed."""
    layer, x = nn.Linear(8, 4).double(), torch.randn(1, 8).double()
    assert installed(layer, "bf16") == {"": "Linear, left alone: weights of torch.float64"}
    assert type(layer) is nn.Linear
    layer = nn.Linear(8, 4)
    installed(layer, "bf16")
    layer.double()
    with torch.no_grad():
        assert torch.equal(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("weights", ["int4", 8, torch.int8, True])
def test_other_types_are_refused(weights) -> None:
    """By what there is."""
    with pytest.raises(InputError, match='weights must be "int8", "bf16" or "float32"'):
        install(nn.Linear(2, 2), weights=weights)
