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

from elman.engines.c.kernels import few_rows
from elman.errors import EngineError, InputError
from elman.functional import install, report, uninstall
from elman.functional.linear_layers import MOST_ROWS, TYPES, FewRowsLinear, copy_of
from helpers import need_engine, need_isa


def exact(layer: nn.Linear, x: Tensor, dtype: torch.dtype) -> Tensor:
    """What a layer with such weights computes, in float64."""
    weight, scale = copy_of(layer.weight.detach(), dtype)
    wide = weight.double() if scale is None else weight.double() * scale.double()[:, None]
    out = x.double() @ wide.T
    return out if layer.bias is None else out + layer.bias.detach().double()


def rounding(layer: nn.Linear, x: Tensor, dtype: torch.dtype) -> Tensor:
    """How far a result may be off because inputs are rounded to 16 bits, in blocks of 256 with a
    factor each, which is half a unit of each input."""
    if dtype is not torch.int8:
        return torch.zeros(())
    weight, scale = copy_of(layer.weight.detach(), dtype)
    assert scale is not None
    blocks = x.double().abs().split(256, -1)
    units = [block.amax(-1, keepdim=True).expand_as(block) / 32767 for block in blocks]
    return 0.501 * torch.cat(units, -1) @ (weight.double() * scale.double()[:, None]).abs().mT


def assert_exact(layer: nn.Linear, x: Tensor, dtype: torch.dtype) -> None:
    """A layer has the results of its weights, but for rounding."""
    with torch.no_grad():
        got, want = layer(x), exact(layer, x, dtype)
    off = rounding(layer, x, dtype) + 1e-5 * (want.abs() + want.abs().max())
    assert bool(((got.double() - want).abs() <= off).all())


def installed(model: nn.Module, weights: str | None) -> dict[str, str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing recurs in it
        return install(model, weights=weights)


@pytest.mark.parametrize("isa", ["", "avx2", "scalar"])
@given(
    rows=st.integers(1, MOST_ROWS),
    inputs=st.sampled_from((1, 7, 8, 31, 64, 130, 256, 300, 545)),
    outputs=st.sampled_from((1, 3, 8, 17, 300)),
    bias=st.booleans(),
    kind=st.sampled_from([*TYPES.items()]),
)
def test_few_rows(isa, rows, inputs, outputs, bias, kind) -> None:
    """Sizes that fill no vectors; one thread and several; other instructions."""
    need_engine("c")
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias)
    x, (name, dtype) = torch.randn(rows, inputs), kind
    x[:, inputs // 2] *= 1000  # a number in whose presence others are small
    assert installed(layer, name) == {"": f"Linear, weights in {name} for up to 16 rows"}
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        if isa:
            need_isa(isa, patch)
        assert_exact(layer, x, dtype)


def test_hard_numbers() -> None:
    """Of inputs that are all zero, tiny, infinite or no number: what float32 gives."""
    need_engine("c")
    layer = nn.Linear(300, 5, bias=False)
    installed(layer, "int8")
    with torch.no_grad():
        layer.weight.abs_()
        rows = torch.ones(4, 300)
        rows[0], rows[1], rows[2, 270], rows[3, 3] = 0, 1e-38, float("inf"), float("nan")
        zero, tiny, infinite, unknown = layer(rows)
    assert bool((zero == 0).all())
    assert bool((tiny.abs() < 1e-30).all())
    assert not infinite.isfinite().any()
    assert bool(unknown.isnan().all())


@pytest.mark.parametrize("name", TYPES)
def test_several_threads(name) -> None:
    """A layer that is worth more than one."""
    need_engine("c")
    layer = nn.Linear(600, 1001)
    installed(layer, name)
    x = torch.randn(2, 4, 600)
    assert_exact(layer, x, TYPES[name])


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


@pytest.mark.parametrize("rows", [1, MOST_ROWS + 1])
def test_weights_that_are_written_by_their_data(rows) -> None:
    """As peft merges adapters: torch counts no version then."""
    need_engine("c")
    layer, x = nn.Linear(40, 24), torch.randn(1, 40)
    installed(layer, "int8")
    with torch.no_grad():
        layer(x)
        layer.weight.data += torch.randn(24, 1) @ torch.randn(1, 40)
        layer(torch.randn(rows, 40))
        assert ("weight" in vars(layer)["_copies"]) is (rows == 1)
        assert_exact(layer, x, torch.int8)


def test_weights_of_inference_mode() -> None:
    """They have no version either."""
    need_engine("c")
    with torch.inference_mode():
        layer, x = nn.Linear(8, 4), torch.randn(1, 8)
        installed(layer, "int8")
        assert_exact(layer, x, torch.int8)
        layer.weight.mul_(3)
        assert_exact(layer, x, torch.int8)


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
        copies = vars(layer)["_copies"]
        copies["weight"] = copies["weight"]._replace(
            state=(memory.data_ptr(), layer.weight._version)
        )
        layer.weight = nn.Parameter(memory)  # another parameter, the same address and version
        memory.view(-1).numpy()[:] = 1.0  # as other memory would, without a new version
        assert_exact(layer, x, torch.int8)


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


def test_without_weights_layers_are_torchs_again() -> None:
    """A later call says what it leaves."""
    need_engine("c")
    model = nn.Sequential(nn.Linear(8, 4))
    assert installed(model, "int8") == {"0": "Linear, weights in int8 for up to 16 rows"}
    assert report(model) == {"0": "Linear, weights in int8 for up to 16 rows"}
    assert installed(model, None) == report(model) == {}
    assert type(model[0]) is nn.Linear


def test_linear_layers_are_no_reason_for_nothing() -> None:
    """The warning that nothing recurs names layers that recur alone."""
    need_engine("c")
    with pytest.warns(UserWarning, match="replaced nothing in Sequential: none of its layers has"):
        install(nn.Sequential(nn.Linear(8, 4)), weights="int8")
