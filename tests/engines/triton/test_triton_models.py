"""Models on a GPU as users write them: layers, torch.compile, autocast, streams, training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import elman
from elman import cells
from elman.cli import main
from elman.frontend.cell import Cell
from helpers import assert_all_same
from library_sizes import DIMS

pytestmark = [
    pytest.mark.gpu,
    # torch's own, while it compiles
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
T, B = 24, 6
SOME = [cells.gru_layernorm, cells.lem, cells.slstm, cells.indrnn, cells.lru, cells.cfc, cells.sru]
KINDS = ("RNN", "GRU", "LSTM")


@pytest.fixture(autouse=True)
def ieee() -> Iterator[None]:
    """float32 products are not rounded, in elman and torch alike."""
    switches: Any = (torch.backends.cudnn.rnn, torch.backends.cuda.matmul)
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "ieee"
    yield
    for switch, value in zip(switches, before, strict=True):
        switch.fp32_precision = value


def results(module: nn.Module, inputs: Any, call: Any = None) -> dict[str, torch.Tensor]:
    """Outputs, last states and the gradient of every input and parameter, on the CPU."""
    leaves = [x for x in tree_leaves(inputs) if x.requires_grad]
    returned = tree_leaves((module if call is None else call)(inputs))
    total = sum((value.double().sin().sum() for value in returned), torch.zeros((), device="cpu"))
    weights = dict(module.named_parameters())
    grads = torch.autograd.grad(total, [*leaves, *weights.values()], allow_unused=True)
    names = [*(f"dx{k}" for k in range(len(leaves))), *(f"d{name}" for name in weights)]
    values = {f"out{k}": value.detach() for k, value in enumerate(returned)}
    values |= {n: g for n, g in zip(names, grads, strict=True) if g is not None}
    return {name: value.cpu() for name, value in values.items()}


def moved(inputs: Any, *where: Any) -> Any:
    """Inputs on a device, or of a dtype, that want gradients if they had wanted them."""
    return tree_map(lambda x: x.detach().to(*where).requires_grad_(x.requires_grad), inputs)


def pair_of(cell: Cell) -> tuple[nn.Module, nn.Module, Any]:
    """A layer of a cell on the GPU, the same in float64 on the CPU, and inputs."""
    sizes: dict[str, Any] = {"input_size": 6, "hidden_size": 6} | DIMS.get(cell.name, {})
    torch.manual_seed(0)
    layer = elman.Recurrent(cell, **sizes)
    exact = elman.Recurrent(cell, engine="reference", **sizes)
    exact.load_state_dict(layer.state_dict())
    runtime = layer.runtime
    once = tuple(torch.randn(B, *shape) for shape in runtime.static_sizes)
    inputs = tuple(
        (torch.randn(T, B, *shape) * 0.3).requires_grad_() for shape in runtime.input_sizes
    )
    return layer.to("cuda"), exact.double(), (inputs, once)


def call_with(layer: nn.Module, given: Any) -> Any:
    """A layer's results of inputs and of static inputs."""
    inputs, once = (values if len(values) != 1 else values[0] for values in given)
    return layer(inputs, **({"static": once} if given[1] else {}))


@pytest.mark.parametrize("kind", KINDS)
def test_compiled(kind: str) -> None:
    """torch.compile's graph of a stack computes what the stack computes, gradients too."""
    torch.manual_seed(0)
    net = getattr(elman, kind)(31, 65, 2, bidirectional=True).cuda()
    x = torch.randn(T, B, 31, device="cuda", requires_grad=True)
    want = results(net, x)
    compiles = torch.compile(net, fullgraph=True)
    assert_all_same(results(net, x, compiles), want, torch.float32, T)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half])
@pytest.mark.parametrize("kind", KINDS)
def test_autocast(kind: str, dtype: torch.dtype) -> None:
    """Under autocast a stack has that type's results, near those in float64."""
    torch.manual_seed(0)
    net = getattr(elman, kind)(31, 64, 2)
    exact = getattr(torch.nn, kind)(31, 64, 2).double()
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(value.to(dtype))  # they are rounded by autocast
    exact.load_state_dict(net.state_dict())
    net.cuda()
    x = torch.randn(T, B, 31).to(dtype).float().requires_grad_()

    def call(x: torch.Tensor) -> Any:
        with torch.autocast("cuda", dtype=dtype):
            out = net(x)
        assert out[0].dtype is dtype
        return out

    got = results(net, moved(x, "cuda"), call)
    assert_all_same(got, results(exact, moved(x, torch.float64)), dtype, T)


@pytest.mark.parametrize("kind", KINDS)
def test_streams(kind: str) -> None:
    """A sequence in chunks has the outputs of the whole."""
    torch.manual_seed(0)
    net = getattr(elman, kind)(31, 64, 2).cuda()
    x = torch.randn(T, 1, 31, device="cuda")
    with torch.no_grad():
        want = net(x)[0]
        stream = elman.Stream(net)
        got = torch.cat([stream(part) for part in (x[:1], x[1:2], x[2:9], x[9:])])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", ["char", "word"])
def test_training(level: str, tmp_path: Any, capsys: Any) -> None:
    """``elman train text`` on a GPU, in bfloat16 for words: it ends, and the model has learnt."""
    text = tmp_path / "text.txt"
    text.write_text("".join(random.Random(0).choices(("the ", "cat ", "sat\n"), k=4000)))
    words = ["--hidden=16", "--embedding=8", "--batch=8", "--bptt=16", "--steps=60", "--lr=0.02"]
    words += [f"--level={level}", "--validation-chars=500", "--accelerator=cuda", "--no-compare"]
    if level == "word":
        words.append("--precision=bf16-mixed")
    with pytest.raises(SystemExit) as end:
        main(("train", "text", f"--data={text}", f"--out={tmp_path / 'run'}", *words))
    said = capsys.readouterr()
    assert not end.value.code, said.err
    assert "report.html" in said.out


def test_doctor(capsys: Any) -> None:
    """``elman doctor`` ends well on a machine with a GPU."""
    with pytest.raises(SystemExit) as end:
        main(("doctor",))
    said = capsys.readouterr()
    assert not end.value.code, said.out + said.err


@pytest.mark.parametrize("cell", SOME, ids=lambda cell: cell.name)
def test_cells(cell: Cell) -> None:
    """A layer as ``auto`` runs it, beside the reference in float64."""
    layer, exact, inputs = pair_of(cell)
    want = results(exact, moved(inputs, torch.float64), partial(call_with, exact))
    got = results(layer, moved(inputs, "cuda"), partial(call_with, layer))
    assert_all_same(got, want, torch.float32, T)


@pytest.mark.parametrize("cell", [cells.gated_delta_net, cells.mlstm], ids=lambda cell: cell.name)
def test_matrix_cells(cell: Cell) -> None:
    """Cells with a matrix per sample run on a GPU too."""
    test_cells(cell)
