"""The model of the task `rotate`: recurrent layers and a read-out, both without biases."""

from __future__ import annotations

import torch
from torch import nn

from elman.train.layers import recurrent
from elman.train.regression.model import Regressor
from elman.train.rotate.config import RotateConfig
from elman.train.rotate.data import RotateData
from elman.train.trained import Sizes


def build_model(
    config: RotateConfig, data: RotateData | Sizes, *, baseline: bool = False
) -> Regressor:
    """Build ``h[t] = tanh(W x[t] + R h[t-1])``, ``y[t] = tanh(V h[t])``.

    With another cell, h is that cell's; with `baseline`, of torch.nn's recurrent layers.
    """
    torch.manual_seed(config.seed)
    layers = recurrent(config, data.inputs, config.layers, baseline=baseline, bias=False)
    readout = nn.Sequential(nn.Linear(config.hidden, data.outputs, bias=False), nn.Tanh())
    return Regressor(layers, readout, config.dropout, data.per_step)
