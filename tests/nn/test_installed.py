"""elman.install: layers of torch's run on elman, and stay torch's in all else."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import LSTM as HELD  # by name, before
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import elman
from elman.errors import InputError
from elman.nn.modules import installed
from elman.nn.modules.torch_layers import TorchLayers
from helpers import assert_close

X = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0))
KINDS = (nn.RNN, nn.GRU, nn.LSTM)
torchs_warnings = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::torch.jit.TracerWarning",
    "ignore:The tensor attributes self.0._flat_weights",
    "ignore:torch.quantize_per_tensor",
)


class Own(nn.LSTM):
    """One with a forward that leads to torch's."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        return super().forward(input, hx) if len(input) else (input, hx)


class Named(nn.GRU):
    """One that calls torch's forward by its name, which a change of classes would not see."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        return nn.GRU.forward(self, input, hx)


class Alone(nn.GRU):
    """One with a forward of its own."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        return input, hx


class Halves(nn.GRU):
    """One that computes with other weights than it has."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self._flat_weights[1] = nn.Parameter(self.weight_hh_l0.detach() / 2)


@pytest.fixture
def here():
    elman.install()
    yield
    elman.uninstall()


def runs(layer: nn.Module) -> bool:
    return "runs on elman" in elman.nn.report(layer)[""]


def results(layer: Any, x: Any = X) -> list[torch.Tensor]:
    """Outputs, last states and gradients."""
    torch.manual_seed(0)
    out, last = layer(x)
    out = out.data if isinstance(out, PackedSequence) else out
    loss = out.sin().sum()
    values = [out, *(last if isinstance(last, tuple) else [last])]
    return values + [*torch.autograd.grad(loss, [*layer.parameters()])]


@pytest.mark.parametrize("kind", [*KINDS, Own])
def test_results_are_torchs(kind):
    """Of tensors and packed sequences; the layer was there before, and is as it was."""
    torch.manual_seed(0)
    layer, packed = kind(3, 4, num_layers=2, dropout=0.2), pack_sequence([X[:3, 0], X[:, 1]], False)
    before, pickled = {*vars(layer)}, pickle.dumps(layer)
    want = [results(layer, x) for x in (X, packed)]
    elman.install()
    try:
        for _ in range(2):
            for x, values in zip((X, packed), want, strict=True):
                for got, value in zip(results(layer, x), values, strict=True):
                    assert_close(got, value)
        assert type(layer) is kind
        assert {*vars(layer)} == before
        assert pickle.dumps(layer) == pickled
        name = f"torch.nn.{kind.__name__}" if kind in KINDS else kind.__name__
        said, _, engine = elman.nn.report(layer)[""].rpartition(": ")
        assert said == f"{name}, runs on elman.{layer.mode.partition('_')[0]}, engine auto"
        assert engine
    finally:
        elman.uninstall()
    assert elman.nn.report(layer)[""] == f"{name}, not accelerated"
    assert "forward" in vars(nn.GRU)
    assert nn.GRU.forward.__code__.co_filename.endswith("rnn.py")


def test_twice_is_once(here):
    forward = nn.GRU.forward
    elman.install()
    assert nn.GRU.forward is forward
    elman.uninstall()
    elman.uninstall()
    assert nn.GRU.forward.__code__.co_filename.endswith("rnn.py")


def test_subclasses(here):
    """Those whose forward leads to torch's, however; what is left alone is said."""
    for kind in (Own, Named):
        layer = kind(3, 4)
        assert results(layer)
        assert runs(layer)
    assert not runs(Alone(3, 4))
    assert "left alone: its forward does not" in elman.nn.report(Alone(3, 4))[""]
    assert isinstance(HELD(3, 4), nn.LSTM)
    assert Own(3, 4)(X[:0])[1] is None


def test_a_subclass_whose_results_differ(here):
    """It is torch's from the first call on."""
    layer = Halves(3, 4)
    elman.uninstall()
    want = layer(X)[0]
    elman.install()
    with pytest.warns(UserWarning, match="Halves runs on torch, not on elman: its results") as told:
        assert_close(layer(X)[0], want)
    assert_close(layer(X)[0], want)
    assert len(told) == 1
    assert not runs(layer)
    assert "Halves, left alone: its results are not" in elman.nn.report(layer)[""]


def test_copies_and_files(here):
    """None has anything of elman's, all run on it."""
    layer = nn.GRU(3, 4)
    want, file = results(layer), io.BytesIO()
    torch.save(layer, file)
    assert b"elman" not in file.getvalue()
    file.seek(0)
    for other in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        for got, value in zip(results(other), want, strict=True):
            assert_close(got, value)
        assert runs(other)


def test_a_layer_that_changes(here):
    """Its class when it is parametrized, its weights, its type."""
    layer: Any = nn.GRU(3, 4)
    layer(X)
    parametrizations.orthogonal(layer, "weight_hh_l0")
    out = layer(X)[0]
    assert runs(layer)
    parametrize.remove_parametrizations(layer, "weight_hh_l0")
    assert type(layer) is nn.GRU
    assert_close(layer(X)[0], out)
    with torch.no_grad():
        layer.weight_hh_l0.zero_()
    assert not torch.equal(layer(X)[0], out)
    assert layer.double()(X.double())[0].dtype == torch.float64


def test_nothing_keeps_a_layer(here):
    """It is freed with its weights, without the collector of cycles."""
    layer = nn.GRU(3, 4)
    layer(X)
    gc.disable()
    try:
        weights = [weakref.ref(layer), weakref.ref(layer.weight_hh_l0)]
        del layer
        assert [weight() for weight in weights] == [None, None]
    finally:
        gc.enable()
    assert not [*installed._doubles]


@torchs_warnings
def test_scripts_traces_and_programs(here):
    """torch reads its own source, and records its own operations."""
    model = nn.Sequential(nn.GRU(3, 4))
    want = model(X)[0]
    assert_close(torch.jit.script(model)(X)[0], want)
    assert_close(torch.jit.trace(model, X)(X)[0], want)
    assert "elman" not in str(torch.export.export(model, (X,)))
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.GRU}, dtype=torch.qint8)
    assert not isinstance(quantised[0], nn.GRU)
    assert runs(model[0])


def test_models_accelerated_there(here):
    """And restored: they run on elman before, then and after."""
    model = nn.Sequential(Own(3, 4))
    want = model(X)[0]
    elman.accelerate(model)
    assert isinstance(model[0], elman.LSTM)
    assert_close(model(X)[0], want)
    assert runs(elman.restore(model)[0])
    assert_close(model(X)[0], want)


def test_replicas_are_torchs(here):
    """nn.DataParallel makes new ones for each call: none is prepared, none is remembered."""
    layer: Any = nn.GRU(3, 4)
    want = layer(X)[0]
    replica = layer._replicate_for_data_parallel()
    for name in layer._flat_weights_names:
        setattr(replica, name, getattr(layer, name).detach())
    remembered = [*installed._history]
    assert_close(replica(X)[0], want)
    assert installed._history == remembered
    assert runs(layer)


def test_what_elman_cannot_run(here, monkeypatch):
    """A layer that it cannot prepare is torch's own, as without elman."""

    def refuse(_: Any) -> None:
        raise InputError("too many layers")

    monkeypatch.setattr(TorchLayers, "_make_runtime", refuse)
    layer = nn.RNN(3, 4)
    out = layer(X)[0]
    assert not runs(layer)
    assert installed.all_that_ran() == ([], ["torch.nn.RNN, left alone: no engine takes its calls"])
    elman.uninstall()
    assert torch.equal(layer(X)[0], out)


def test_mistakes_are_torchs(here):
    with pytest.raises(RuntimeError, match="must be equal to input_size"):
        nn.GRU(3, 4)(torch.randn(5, 2, 6))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'input'"):
        nn.GRU(3, 4)()


@pytest.mark.slow
def test_compiled(here):
    """The compiler breaks its graph at the layer, as it does at torch's, which runs on elman."""
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(3, 3), nn.GRU(3, 4))
    want = model(X)[0]
    assert_close(torch.compile(model, backend="eager")(X)[0], want)
    assert runs(model[1])


def test_script_of_an_accelerated_model():
    """It says what to write."""
    model = elman.accelerate(nn.Sequential(nn.GRU(3, 4)))
    with (
        pytest.warns(DeprecationWarning, match="torch.jit.script"),
        pytest.raises(InputError, match=r"takes torch's own layers, not elman.GRU\n.*restore"),
    ):
        torch.jit.script(model)
    assert type(model[0]) is elman.GRU


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantisation_of_an_accelerated_model():
    """Layers stay as they are, with a warning."""
    model = elman.accelerate(nn.Sequential(nn.GRU(3, 4)))
    with pytest.warns(UserWarning, match="torch.ao does not quantise elman.GRU"):
        left = torch.ao.quantization.quantize_dynamic(model, {nn.GRU}, dtype=torch.qint8)
    assert type(left[0]) is elman.GRU
