"""torch's own ways to elsewhere: torch.onnx.export, torch.jit.trace, dynamic quantisation."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch.utils._pytree import tree_leaves

import elman
from elman.errors import InputError
from products import every

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


def exporting(test):
    """Marks of what the newer exporter writes."""
    quiet = pytest.mark.filterwarnings(
        "ignore:Exporting a model while it is in training:UserWarning",
        "ignore:.isinstance.treespec, LeafSpec:FutureWarning",
        "ignore:# The axis name:UserWarning",
    )
    return quiet(pytest.mark.usefixtures("translations_read_once")(test))


def check_onnx(model, path, draw, axes=(0, 1), samples=2):
    """A model, written with any T and B from an example of some samples, gives what it gives:
    ``draw(T, B)`` are its arguments."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    T, B = torch.export.Dim("T"), torch.export.Dim("B")
    example = draw(5, samples)
    both = dict(zip(axes, (T, B)))
    shapes = tuple([{0: B} if value.dim() == 1 else both for value in example])
    torch.onnx.export(model, example, path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [slot.name for slot in session.get_inputs()]
    for steps, batch in ((5, 2), (1, 4), (11, 1)):
        values = draw(steps, batch)
        found = session.run(None, dict(zip(names, [v.numpy() for v in values], strict=True)))
        for got, want in zip(found, tree_leaves(model(*values)), strict=True):
            torch.testing.assert_close(torch.from_numpy(got), want.detach())


@pytest.mark.slow
@exporting
def test_a_whole_model(tmp_path):
    """torch's exporter translates layers of elman's among others, with options of a call, for any
    T and B; not in training, where numbers are random."""
    model, path = Masked(), tmp_path / "net.onnx"

    def draw(T, B):
        return torch.randint(9, (T, B)), torch.rand(T, B) < 0.3

    with pytest.raises(Exception, match="random numbers are those of training") as refused:
        check_onnx(model, path, draw)
    assert isinstance(refused.value.__cause__, InputError)
    check_onnx(model.eval(), path, draw)
    assert not any(group._oracles for group in model.lower.stack.groups.values())  # kept for later


class Called(torch.nn.Module):
    """A layer with one argument of a call; outputs alone."""

    def __init__(self, layer, name) -> None:
        super().__init__()
        self.layer, self.name = layer, name

    def forward(self, x, value=None):
        return self.layer(x, **({} if value is None else {self.name: value}))[0]


ONE_SAMPLE = {
    "cell": (lambda: elman.Recurrent(elman.cells.mgu, 3, 4, batch_first=True), ""),
    "layers": (lambda: elman.Recurrent(elman.cells.lem, 3, 4, 2, batch_first=True), ""),
    "lengths": (lambda: elman.GRU(3, 4, batch_first=True), "lengths"),
    "mask": (lambda: elman.LSTM(3, 4, batch_first=True), "mask"),
    "reset": (lambda: elman.GRU(3, 4, batch_first=True, bidirectional=True), "reset"),
}


@pytest.mark.slow
@exporting
@pytest.mark.parametrize("name", every(2, [*ONE_SAMPLE]))
def test_an_example_of_one_sample(name, tmp_path):
    """The batch stays dynamic."""
    build, option = ONE_SAMPLE[name]

    def draw(T, B):
        values = {"lengths": torch.full((B,), T), "mask": torch.rand(B, T) < 0.7}
        values["reset"] = torch.rand(B, T) < 0.3
        return torch.randn(B, T, 3), *[values[option] for _ in option[:1]]

    model = Called(build(), option).eval()
    check_onnx(model, tmp_path / "net.onnx", draw, axes=(1, 0), samples=1)


@pytest.mark.slow
@exporting
def test_a_batch_that_torch_fixes():
    """Where torch's own operations fix B = 1, it is told."""
    pytest.importorskip("onnxscript")
    T, B = torch.export.Dim("T"), torch.export.Dim("B")
    model = Called(elman.layers.RWKV7(8, head_size=4), "").eval()
    with pytest.warns(UserWarning, match="the batch of the exported RWKV7 is 1"):
        torch.onnx.export(
            model, (torch.randn(5, 1, 8),), dynamo=True, dynamic_shapes=({0: T, 1: B},),
            verbose=False,
        )  # fmt: skip


class Padded(torch.nn.Module):
    """Every option of a call at once, in two directions, batch first."""

    def __init__(self) -> None:
        super().__init__()
        options = {"bidirectional": True, "batch_first": True, "learn_initial": True}
        self.layer = elman.Recurrent(elman.cells.gru, 3, 4, num_layers=2, **options)

    def forward(self, x, starts, mask, lengths):
        return self.layer(x, reset=starts, mask=mask, lengths=lengths, outputs="states")


@pytest.mark.slow
@exporting
def test_options_of_padded_batches(tmp_path):
    """Nothing is reset in the padding; outputs and states are zero there, in masked steps held."""
    model = Padded().eval()
    torch.nn.init.normal_(model.layer.initial_h)

    def draw(T, B):
        flags = torch.rand(2, B, T) < 0.4
        return torch.randn(B, T, 3), flags[0], flags[1], torch.randint(1, T + 1, (B,))

    check_onnx(model, tmp_path / "net.onnx", draw, axes=(1, 0))


@pytest.mark.slow
@exporting
@pytest.mark.parametrize("kind", ["float64", "convolution"])
def test_other_layers(kind, tmp_path):
    """What runtimes lack for float64 is a scan; layers around cells take any T."""
    layer = (
        elman.GRU(3, 4).double()
        if kind == "float64"
        else elman.layers.GatedDeltaNet(8, num_heads=2, head_dim=4)
    )
    size, dtype = (3, torch.float64) if kind == "float64" else (8, torch.float32)
    draw = lambda T, B: (torch.randn(T, B, size, dtype=dtype),)  # noqa: E731
    check_onnx(layer.eval(), tmp_path / "net.onnx", draw)


class Aside(torch.nn.Module):
    """While it is traced, another thread calls a function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.layer, self.function = elman.GRU(3, 4), function

    def forward(self, x):
        thread = threading.Thread(target=self.function)
        thread.start()
        thread.join()
        return self.layer(x)[0]


@pytest.mark.slow
@exporting
def test_other_threads_are_left_alone(tmp_path):
    """What they call while one exports is computed as ever."""
    pytest.importorskip("onnxscript")
    gru, mgu = elman.GRU(3, 4), elman.Recurrent(elman.cells.mgu, 3, 4)
    x = torch.randn(5, 2, 3)
    results = []

    def call():
        with torch.no_grad():
            results.append((gru(x)[0], mgu(x, lengths=[5, 3])[0]))

    model = Aside(call).eval()
    torch.onnx.export(model, (x,), tmp_path / "net.onnx", dynamo=True, verbose=False)
    assert results
    traced = len(results)
    call()
    call()
    for found in results[:traced] + results[traced + 1 :]:
        for got, want in zip(found, results[traced], strict=True):
            torch.testing.assert_close(got, want)


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
    """It asks for classes: elman's layers stay as they are, with a warning; restored ones are
    quantised."""
    quantised = torch.ao.quantization.quantize_dynamic
    model = Model(elman.accelerate(torch.nn.LSTM(3, 4)))
    with pytest.warns(UserWarning, match=r"torch.ao does not quantise elman.LSTM"):
        same = quantised(model, {torch.nn.LSTM})
    assert type(same.recurrent) is elman.LSTM
    done = quantised(elman.restore(model), {torch.nn.LSTM}).recurrent
    assert type(done).__module__.startswith("torch.ao.nn.quantized")
