"""torch.compile of programs with scans: torch's own by the backend, elman's by a graph break."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elman

pytestmark = [
    pytest.mark.slow,  # torch's compiler takes seconds
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's own
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # it reads those of all tensors
]


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Model(nn.Module):
    """Torch's scan of a step that closes over parameters, as programs write it."""

    def __init__(self) -> None:
        super().__init__()
        self.W, self.R = nn.Linear(5, 6), nn.Linear(6, 6)

    def step(self, h: Tensor, x: Tensor) -> Any:
        h = torch.tanh(self.W(x) + self.R(h))
        return h, torch.sigmoid(h) * 2

    def forward(self, h: Tensor, x: Tensor) -> Any:
        last, ys = torch._higher_order_ops.scan(self.step, h, x * 0.5)
        return last, ys.sin()

    def plain(self, h: Tensor, x: Tensor) -> Any:
        ys = []
        for row in x * 0.5:
            h, y = self.step(h, row)
            ys.append(y)
        return h, torch.stack(ys).sin()


def test_a_backend_fuses_torchs_scan():
    """pytorch #195977, #153679: inductor refuses such a scan, or gives wrong gradients of it."""
    model, h = Model(), torch.randn(3, 6, requires_grad=True)
    compiled = torch.compile(model, backend="elman")
    for steps in (4, 7):
        x = torch.randn(steps, 3, 5, requires_grad=True)
        found, expected = compiled(h, x), model.plain(h, x)
        torch.testing.assert_close(found, expected)
        leaves = [h, x, *model.parameters()]
        grads = [
            torch.autograd.grad(last.sum() + (ys * ys).sum(), leaves)
            for last, ys in (found, expected)
        ]
        torch.testing.assert_close(*grads)


def test_a_program_without_scans_runs_as_it_is():
    x = torch.randn(4)
    assert torch.equal(torch.compile(lambda v: v.sin() + 1, backend="elman")(x), x.sin() + 1)


@pytest.mark.parametrize("kind", ["scan", "loop"])
def test_loops_inside_of_a_compiled_program(kind):
    cell, h = nn.GRUCell(5, 6), torch.randn(3, 6)
    loop = elman.Loop(cell, engine="reference")

    def program(x: Tensor) -> Tensor:
        x = x * 2
        if kind == "loop":
            return loop(x, h)[0].cos()
        return elman.scan(lambda s, v: (s := cell(v, s), s), h, x, engine="reference")[1].cos()

    x = torch.randn(4, 3, 5)
    torch.testing.assert_close(torch.compile(program, backend="aot_eager")(x), program(x))
