"""torch's own ways to elsewhere: torch.onnx.export, torch.jit.trace, dynamic quantisation."""

from __future__ import annotations

import warnings

import pytest
import torch

import elman
from elman.errors import InputError

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
    """Written by torch's older exporter."""
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


class Masked(torch.nn.Module):
    """A stack whose state is reset, between other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.readout = torch.nn.Embedding(9, 3), torch.nn.Linear(4, 2)
        options = {"bidirectional": True, "recurrent_dropout": 0.5}
        self.lower = elman.Recurrent(elman.cells.mgu, 3, 4, **options)
        self.upper = elman.LSTM(8, 4)

    def forward(self, words, starts):
        below = self.lower(self.embedding(words), reset=starts)[0]
        return self.readout(self.upper(below)[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Exporting a model while it is in training:UserWarning")
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
@pytest.mark.filterwarnings("ignore:# The axis name:UserWarning")
def test_a_whole_model(tmp_path):
    """torch's exporter translates layers of elman's among others, with options of a call, for any
    T and B; not in training, where numbers are random."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, path = Masked(), tmp_path / "net.onnx"
    example = torch.randint(9, (5, 2)), torch.rand(5, 2) < 0.3
    sizes = {0: torch.export.Dim("T"), 1: torch.export.Dim("B")}
    shapes = {"words": sizes, "starts": sizes}

    def write():
        torch.onnx.export(model, example, path, dynamo=True, dynamic_shapes=shapes, verbose=False)

    with pytest.raises(Exception, match="random numbers are those of training") as refused:
        write()
    assert isinstance(refused.value.__cause__, InputError)
    model.eval()
    write()
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [slot.name for slot in session.get_inputs()]
    for T, B in ((5, 2), (1, 4), (11, 1)):
        values = torch.randint(9, (T, B)), torch.rand(T, B) < 0.3
        feed = dict(zip(names, [value.numpy() for value in values], strict=True))
        (found,) = session.run(None, feed)
        torch.testing.assert_close(torch.from_numpy(found), model(*values).detach())
    assert not any(group._oracles for group in model.lower.stack.groups.values())  # kept for later


@pytest.mark.parametrize(
    "layer",
    (
        lambda: elman.Recurrent(elman.cells.mgu, 3, 4),
        lambda: elman.GRU(3, 4, heads=2),
        lambda: elman.LSTM(3, 4, residual=True),
    ),
)
def test_what_the_older_exporter_cannot_write_is_told(layer, tmp_path):
    with pytest.raises(InputError, match=r"older exporter(.|\n)*dynamo=True"):
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
