"""Recurrent layers with a linear read-out of numbers, at each step or at the last."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from elman.train.layers import recurrent
from elman.train.regression.config import RegressionConfig
from elman.train.regression.data import RegressionData
from elman.train.regression.trained import RegressionSpec


class Regressor(nn.Module):
    """Predicts numbers.

    Args:
        layers: outputs [T, B, H] and something = layers(x).
        readout: from [..., H] to [..., O].
        dropout: share of values dropped before the read-out.
        per_step: whether there is a target per step, or one from the last output.
    """

    def __init__(self, layers: nn.Module, readout: nn.Module, dropout: float, per_step: bool):
        super().__init__()
        self.layers = layers
        self.dropout = nn.Dropout(dropout)
        self.readout = readout
        self.per_step = per_step

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, None]:
        """Predict.

        Args:
            x [T, B, I]: whole sequences.
            state: unused; a sequence is read at once.

        Returns:
            outputs [T, B, O] or [B, O], and no state.
        """
        h, _ = self.layers(x)
        return self.readout(self.dropout(h if self.per_step else h[-1])), None


def build_model(
    config: RegressionConfig, data: RegressionData | RegressionSpec, *, baseline: bool = False
) -> Regressor:
    """Build the model of a run; with `baseline` the same on torch.nn's recurrent layers."""
    torch.manual_seed(config.seed)
    layers = recurrent(config, data.inputs, config.layers, baseline=baseline)
    readout = nn.Linear(config.hidden, data.outputs)
    return Regressor(layers, readout, config.dropout, data.per_step)
