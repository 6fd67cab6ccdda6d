"""Random models of sequences, of the layers that ``to_c`` writes."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional

import elman

_POINTWISE = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.GELU, nn.Softplus, nn.ELU, nn.Hardtanh)
_KINDS = (
    "linear",
    "conv",
    "conv",
    "depthwise",
    "norm",
    "pointwise",
    "residual",
    "pool",
    "recurrent",
)
_CELLS = ("gru", "mgu", "lstm", "indrnn", "rlif", "mingru", "lif")


class Channels(nn.Module):
    """A module of [B, C, T] on [B, T, C], the steps padded in front."""

    def __init__(self, module: nn.Module, before: int) -> None:
        super().__init__()
        self.module, self.before = module, before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (
            functional.pad(x.transpose(1, 2), (self.before, 0))
            if self.before
            else x.transpose(1, 2)
        )
        return self.module(x).transpose(1, 2)


class Outputs(nn.Module):
    """The outputs of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


class Residual(nn.Module):
    """A module, its input added."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.module(x)


class OverSteps(nn.Module):
    """The last step, the mean or the largest over steps."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -1] if self.kind == "last" else getattr(x, self.kind)(1)


def random_model(seed: int) -> tuple[nn.Module, torch.Tensor, str]:
    """A model, an input [1, T, F], and how it ends: ``steps``, or as :class:`OverSteps`."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    size = features = draw.randint(1, 6)
    layers: list[nn.Module] = []
    count = draw.randint(2, 6)
    recurrent_at = draw.randrange(count)
    for at in range(count):
        kind = draw.choice(_KINDS)
        kind = "recurrent" if at == recurrent_at else kind
        layer, size = _layer(draw, kind, size)
        layers.append(layer)
    end = draw.choice(["steps", "steps", "last", "mean", "amax"])
    if end != "steps":
        layers.append(OverSteps(end))
    layers.append(nn.Linear(size, draw.randint(1, 4)))
    model = nn.Sequential(*layers).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.normal_(module.running_mean)
    return model, torch.randn(1, 48, features), end


def _layer(draw: random.Random, kind: str, size: int) -> tuple[nn.Module, int]:
    width = draw.randint(2, 9)
    if kind == "linear":
        return nn.Linear(size, width, bias=draw.random() < 0.7), width
    if kind == "conv":
        taps, dilation, stride = draw.randint(1, 4), draw.choice([1, 1, 2]), draw.choice([1, 1, 2])
        span = dilation * (taps - 1)
        conv = nn.Conv1d(size, width, taps, stride, dilation=dilation)
        return Channels(conv, draw.choice([span, span, 0])), width
    if kind == "depthwise":
        taps = draw.randint(2, 4)
        return Channels(nn.Conv1d(size, size, taps, groups=size), taps - 1), size
    if kind == "norm":
        norm = draw.choice([nn.LayerNorm(size), nn.RMSNorm(size), nn.BatchNorm1d(size)])
        return (Channels(norm, 0) if isinstance(norm, nn.BatchNorm1d) else norm), size
    if kind == "pointwise":
        return draw.choice(_POINTWISE)(), size
    if kind == "residual":
        inner, _ = _layer(draw, "pointwise", size)
        return Residual(nn.Sequential(nn.Linear(size, size), inner)), size
    if kind == "pool":
        pool = draw.choice([nn.MaxPool1d, nn.AvgPool1d])(draw.randint(1, 2))
        return Channels(pool, 0), size
    if draw.random() < 0.5:
        layer = draw.choice([nn.GRU, nn.LSTM, nn.RNN])
        return Outputs(layer(size, width, draw.randint(1, 2), batch_first=True)), width
    cell = getattr(elman.cells, draw.choice(_CELLS))
    return Outputs(elman.Recurrent(cell, size, width, batch_first=True)), width
