"""Second derivatives of each class of elman.layers, by kernels and by torch's operations."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import elman
from elman import layers
from helpers import assert_close

LAYERS = {
    "DeltaNet": lambda: layers.DeltaNet(16, num_heads=2, use_gate=True),
    "GatedDeltaNet": lambda: layers.GatedDeltaNet(16, num_heads=2, head_dim=8),
    "GatedLinearAttention": lambda: layers.GatedLinearAttention(16, num_heads=2),
    "MLSTM": lambda: layers.MLSTM(16, num_heads=2),
    "RWKV7": lambda: layers.RWKV7(16, head_size=8),
    "Mamba2": lambda: layers.Mamba2(16, d_state=8, headdim=8),
    "LRU": lambda: layers.LRU(16),
    "S4D": lambda: layers.S4D(16, d_state=4),
    "Stack": lambda: layers.Stack("gru", 16, 16, 2),
    "Strided": lambda: layers.Strided("gru", 16, 16, (1, 2)),
}


def derivatives(net: Any, x: Tensor, directions: list[Tensor]) -> list[Tensor]:
    """Gradients of a loss, and those of their product with the directions."""
    leaves = [x.clone().requires_grad_(), *net.parameters()]
    out = net(leaves[0])
    loss = (out[0] if isinstance(out, tuple) else out).sin().square().sum()
    first = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    along = sum((d * v).sum() for d, v in zip(first, directions) if d is not None)
    second = torch.autograd.grad(along, leaves, allow_unused=True)  # type: ignore[arg-type]
    zeros = [torch.zeros_like(leaf) for leaf in leaves]
    return [z if d is None else d for d, z in zip((*first, *second), zeros * 2, strict=True)]


def test_each_class_has_a_case():
    assert {*LAYERS} == {*layers.__all__}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:transforms and second derivatives")
@pytest.mark.parametrize("name", LAYERS)
def test_second_derivatives(name):
    torch.manual_seed(0)
    net, x = LAYERS[name]().double(), torch.randn(6, 2, 16, dtype=torch.float64)
    with torch.no_grad():
        for weight in net.parameters():
            if not weight.any():  # such hide what they multiply
                weight.normal_(0, 0.1)
    directions = [torch.randn_like(value) for value in (x, *net.parameters())]
    with elman.using(engine="reference"):
        want = derivatives(copy.deepcopy(net), x, directions)
    for got, value in zip(derivatives(net, x, directions), want, strict=True):
        assert_close(got, value)
