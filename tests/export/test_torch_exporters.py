"""torch's own ways to elsewhere: torch.onnx.export, torch.jit.trace, dynamic quantisation."""

from __future__ import annotations

import warnings

import pytest
import torch

import elman
from elman.errors import InputError
from elman.nn.engine_choice import exports_onnx

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.quantize_per_tensor"),
    pytest.mark.filterwarnings("ignore:The tensor attributes"),  # of torch.nn.GRU too
]


class Model(torch.nn.Module):
    """A recurrent layer and a read-out."""

    def __init__(self, layer) -> None:
        super().__init__()
        self.recurrent, self.readout = layer, torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.readout(self.recurrent(x)[0])


def exported(model, path):
    """Written by torch's exporter that needs no further package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model.eval(), (torch.randn(5, 2, 3),), path, dynamo=False)


@pytest.mark.slow
@pytest.mark.parametrize("layer", ("GRU", "LSTM", "accelerated"))
def test_drop_ins_are_exported_as_torchs_layers(layer, tmp_path):
    onnx = pytest.importorskip("onnx")
    made = elman.accelerate(torch.nn.LSTM(3, 4)) if layer == "accelerated" else None
    model = Model(made or getattr(elman, layer)(3, 4))
    exported(model, tmp_path / "net.onnx")
    kinds = {node.op_type for node in onnx.load(tmp_path / "net.onnx").graph.node}
    assert ("GRU" if layer == "GRU" else "LSTM") in kinds


@pytest.mark.slow
def test_an_exported_program_for_onnx_has_torchs_operators(monkeypatch):
    """What torch.onnx's newer exporter translates; elsewhere it has elman's."""
    model = Model(elman.GRU(3, 4)).eval()

    def operators():
        program = torch.export.export(model, (torch.randn(5, 2, 3),), strict=False)
        return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}

    assert any(name.startswith("elman.") for name in operators())
    monkeypatch.setattr("torch.onnx.is_in_onnx_export", lambda: True)
    assert exports_onnx()
    assert not any(name.startswith("elman.") for name in operators())


@pytest.mark.parametrize(
    "layer",
    (
        lambda: elman.Recurrent(elman.cells.mgu, 3, 4),
        lambda: elman.GRU(3, 4, heads=2),
        lambda: elman.LSTM(3, 4, residual=True),
    ),
)
def test_what_torchs_exporter_cannot_write_is_told(layer, tmp_path):
    with pytest.raises(InputError, match=r"torch.onnx.export has no operator(.|\n)*to_onnx\(net"):
        exported(Model(layer()), tmp_path / "net.onnx")


def test_a_loss_is_exported_in_torchs_operations(monkeypatch):
    decoder = elman.LinearCrossEntropyLoss(4, 7, bias=True)
    x, targets = torch.randn(5, 4), torch.randint(7, (5,))
    expected = decoder(x, targets)
    monkeypatch.setattr("torch.onnx.is_in_onnx_export", lambda: True)
    torch.testing.assert_close(decoder(x, targets), expected)


def test_a_trace_says_that_it_has_as_many_steps():
    net, x = elman.Recurrent(elman.cells.mgu, 3, 4), torch.randn(5, 2, 3)
    with pytest.warns(torch.jit.TracerWarning) as said:
        traced = torch.jit.trace(net, x, check_trace=False)
    texts = [one for one in said if "steps of this Recurrent one by one" in str(one.message)]
    assert len(texts) == 1
    torch.testing.assert_close(traced(x), net(x))


@pytest.mark.slow
def test_dynamic_quantisation_is_of_torchs_layers():
    """It asks for classes: elman's layers stay as they are, restored ones are quantised."""
    quantised = torch.ao.quantization.quantize_dynamic
    model = Model(elman.accelerate(torch.nn.LSTM(3, 4)))
    assert type(quantised(model, {torch.nn.LSTM}).recurrent) is elman.LSTM
    done = quantised(elman.restore(model), {torch.nn.LSTM}).recurrent
    assert type(done).__module__.startswith("torch.ao.nn.quantized")
