"""States [B, N, K] of steps: rows and columns are rolled, written, joined and taken as parts of one
matrix, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import elman
from helpers import need_engine
from step_runs import STEPS_CLOSE, Scan, differences, found_by, plain_scan

F64 = torch.float64
B, T = 3, 7


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def scan_on(engine: str) -> Scan:
    need_engine(engine)
    return lambda step, init, xs, **how: elman.scan(step, init, xs, engine=engine, **how)


def window(S: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The last columns of inputs [B, N], more of them than a formula has slices."""
    S = torch.roll(S, shifts=-1, dims=-1)
    S[:, :, -1] = x
    return S, torch.tanh((S * w).sum(-1))


def memory(S: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The last rows, each through a product, which an input attends to."""
    seen = torch.cat([S, x.unsqueeze(1)], 1) @ w
    weights = torch.softmax((seen * x.unsqueeze(1)).sum(-1), -1)
    out = (weights.unsqueeze(-1) * seen).sum(1)
    return torch.cat([S, x.unsqueeze(1)], 1)[:, 1:] * 0.9, out + seen[:, 2]


def written(S: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Rows moved two further, one of them written, one read, two joined in front."""
    S = torch.roll(torch.tanh(S @ w), shifts=2, dims=1).clone()
    S[:, 1] = x
    S = torch.cat([x.unsqueeze(1), S[:, 3:], S[:, :2]], 1)
    outer = x.unsqueeze(-1) * S[:, 0].unsqueeze(1)
    return torch.cat([S[:, :4], outer[:, :1]], 1), S[:, -1] + outer.sum(1)


STEPS: dict[str, tuple[Callable[..., Any], tuple[int, int], int, tuple[int, ...]]] = {
    "window": (window, (70, 4), 70, (70, 4)),
    "memory": (memory, (5, 6), 6, (6, 6)),
    "written": (written, (5, 6), 6, (6, 6)),
}


@pytest.mark.parametrize("engine", ["reference", "c"])
@pytest.mark.parametrize("name", STEPS)
def test_a_matrix_is_moved_as_a_whole(name, engine):
    step, state, width, weight = STEPS[name]
    w = nn.Parameter(0.4 * normal(*weight, seed=2))

    def body(S: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return step(S, x, w)

    init, xs = 0.5 * normal(B, *state), normal(T, B, width, seed=3)
    want = found_by(plain_scan, body, init, xs, [w])
    got = found_by(scan_on(engine), body, init, xs, [w])
    off = differences(got, want, STEPS_CLOSE[F64][0])
    assert not off, "\n".join(off)


def test_samples_stay_apart():
    """A window of many columns is one matrix of each sample, not a slice for each."""
    w = nn.Parameter(normal(70, 4, seed=2))

    class Cell(nn.Module):
        def forward(self, S: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return window(S, x, w)

    loop = elman.Loop(Cell(), carry_first=True, engine="reference")
    layer, *_ = loop.layer_call(normal(T, B, 70), normal(B, 70, 4))
    assert len(layer.cell.graph.states) == 1
