"""Layers of torch's cells in half precision on a CPU, with what torch's own layers lack."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import elman
from elman.errors import EngineError

SLOW = "ignore:.* runs step by step on engine reference"
NEAR = 3e-2  # of values below 1, after five steps of eight bits
OPTIONS: list[tuple[type, dict[str, Any], dict[str, Any]]] = [
    (elman.RNN, {"learn_initial": True}, {}),
    (elman.RNN, {"plan": elman.PlanOptions(checkpoint=2)}, {}),
    (elman.GRU, {"heads": 2}, {}),
    (elman.GRU, {"residual": True, "num_layers": 2}, {}),
    (elman.GRU, {"clip_gradient": 0.5}, {}),
    (elman.GRU, {}, {"reset": torch.eye(5)[:, :3]}),
    (elman.LSTM, {"plan": elman.PlanOptions(without="merging")}, {}),
    (elman.LSTM, {}, {"outputs": "states"}),
    (elman.LSTM, {"zoneout": 0.3}, {}),  # in training drawn, and computed in float32
]


def named(given: tuple[type, dict[str, Any], dict[str, Any]]) -> str:
    kind, options, call = given
    return f"{kind.__name__}-{'-'.join([*options, *call])}"


@pytest.mark.filterwarnings(SLOW)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", OPTIONS, ids=named)
def test_options_that_torch_lacks(given, dtype, training):
    """As in float32 of the same weights and the same random numbers; gradients come too."""
    kind, options, call = given
    torch.manual_seed(0)
    half = kind(6, 6, **options).train(training).to(dtype)
    full = kind(6, 6, **options, engine="reference").train(training)
    full.load_state_dict(half.state_dict())
    x = torch.randn(5, 3, 6).to(dtype)
    torch.manual_seed(1)
    want = full(x.float(), **call)[0]
    torch.manual_seed(1)
    got = half(x, **call)[0]
    got.sum().backward()
    want.sum().backward()

    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), want, atol=NEAR, rtol=NEAR)
    for (name, ours), theirs in zip(half.named_parameters(), full.parameters(), strict=True):
        off = (ours.grad.float() - theirs.grad).norm() / theirs.grad.norm().clamp_min(1e-6)
        assert off < NEAR, name


def test_an_engine_by_name_is_not_left():
    """It cannot, and says so."""
    net = elman.GRU(3, 4, heads=2, engine="c", dtype=torch.bfloat16)
    with pytest.raises(EngineError, match=r"2 heads: dtype torch\.bfloat16"):
        net(torch.randn(2, 2, 3).bfloat16())
