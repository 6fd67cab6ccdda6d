"""Steps in torch's operations as C and ONNX."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elman
from elman.errors import StepError


class Ode(nn.Module):
    """A Runge-Kutta step of a gated field, and an output of another size than the state."""

    def __init__(self) -> None:
        super().__init__()
        self.field, self.gate, self.out = nn.Linear(11, 7), nn.Linear(11, 7), nn.Linear(7, 3)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        def slope(h: Tensor) -> Tensor:
            both = torch.cat([x, h], -1)
            return torch.sigmoid(self.gate(both)) * (torch.tanh(self.field(both)) - h)

        first = slope(h)
        h = h + 0.5 * slope(h + 0.5 * first)
        return self.out(h), h


class Delta(nn.Module):
    """A delta rule: a matrix for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = nn.Linear(4, 5), nn.Linear(4, 6)

    def forward(self, x: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
        k, v = torch.softmax(self.keys(x), -1), self.values(x)
        S = S + k.unsqueeze(-1) * (v - torch.einsum("bkv,bk->bv", S, k)).unsqueeze(1)
        return torch.einsum("bkv,bk->bv", S, k), S


def zeros(*shapes: tuple[int, ...]) -> Any:
    states = [torch.zeros(2, *shape) for shape in shapes]
    return tuple(states) if len(states) > 1 else states[0]


STEPS = {
    "gru": (lambda: nn.GRUCell(4, 7), zeros((7,))),
    "lstm": (lambda: nn.LSTMCell(4, 7), zeros((7,), (7,))),
    "ode": (Ode, zeros((7,))),
    "delta": (Delta, zeros((5, 6))),
}


@pytest.fixture
def loop(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    make, state = STEPS[request.param]
    return elman.Loop(make()), state


def exported(loop: Any, state: Any) -> Any:
    return loop.layer(torch.randn(3, 2, 4), state)


@pytest.mark.parametrize("loop", STEPS, indirect=True)
def test_c_computes_what_the_layer_does(loop, tmp_path):
    written = elman.export.to_c(exported(*loop), tmp_path, name="step")
    assert written.inputs == {"x0": 4}
    done = subprocess.run(["make", "-C", tmp_path, "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # torch's exporter: seconds each
@pytest.mark.parametrize("loop", ["gru", "lstm", "ode"], indirect=True)
def test_onnx_computes_what_the_loop_does(loop, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    net, state = loop
    path = tmp_path / "step.onnx"
    elman.export.to_onnx(exported(net, state), path)
    x = torch.randn(5, 2, 4)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    out, *_ = session.run(None, {"x0": x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(out), net(x, state)[0], atol=1e-5, rtol=1e-4)


def test_weights_are_copies(tmp_path):
    net = elman.Loop(nn.GRUCell(4, 7))
    layer = exported(net, zeros((7,)))
    assert [p.requires_grad for p in layer.parameters()] == [True] * 4
    assert not {p.data_ptr() for p in layer.parameters()} & {p.data_ptr() for p in net.parameters()}


def test_what_torch_computes_a_part_of_is_refused():
    class Convolved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.conv = nn.GRUCell(4, 7), nn.Conv1d(1, 1, 3, padding=1)

        def forward(self, x: Tensor, h: Tensor) -> Tensor:
            return self.cell(self.conv(x.unsqueeze(1)).squeeze(1), h)

    with pytest.raises(StepError, match="torch computes a part"):
        exported(elman.Loop(Convolved()), zeros((7,)))
