"""Recurrent layers with a linear read-out of numbers, at each step or at the last; once trained, it
reads and predicts in the units of its data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elman.errors import InputError
from elman.layers.parts import first_output
from elman.train.loop.config import Config
from elman.train.loop.layers import output_size, recurrent
from elman.train.loop.task import Trained
from elman.train.tasks.arrays import Scaling


@dataclass(frozen=True)
class RegressionSpec:
    """Sizes that a model of numbers is built from, and the units of its data.

    Attributes:
        inputs: I, values per step.
        outputs: O, values per target.
        per_step: whether there is a target per step.
        inputs_as, targets_as: how values are standardised.
    """

    inputs: int
    outputs: int
    per_step: bool
    inputs_as: Scaling
    targets_as: Scaling

    def __post_init__(self) -> None:
        for scaling, size in ((self.inputs_as, self.inputs), (self.targets_as, self.outputs)):
            if not len(scaling.mean) == len(scaling.spread) == size:
                raise ValueError(f"a mean and a spread are wanted of each of {size} values")


@dataclass(frozen=True)
class TrainedRegression(Trained):
    """A trained model of numbers; ``model(x)`` has standardised x [T, B, I] and outputs."""

    @torch.no_grad()
    def predict(self, x: np.ndarray) -> np.ndarray:
        """Predict in the unit of the data.

        Args:
            x [N, T, I]: sequences as in the file that was trained on; NaN is missing.

        Returns:
            [N, T, O], or of a target per sequence [N, O].

        Raises:
            InputError: x is of another shape.
        """
        spec, x = self.spec, np.asarray(x, np.float64)
        if x.ndim != 3 or x.shape[2] != spec.inputs:
            raise InputError(f"x must be [N, T, {spec.inputs}], not {[*x.shape]}")
        rows = torch.from_numpy(spec.inputs_as.to(x)).transpose(0, 1).contiguous()
        outputs, _ = self.model(rows.to(self.weight))
        values = spec.targets_as.back(outputs.float().cpu().numpy())
        return values.swapaxes(0, 1) if spec.per_step else values


class Regressor(nn.Module):
    """Predicts numbers.

    Args:
        layers: outputs [T, B, H] (or several, of which the first is) and something = layers(x).
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
        h = first_output(self.layers(x)[0])
        return self.readout(self.dropout(h if self.per_step else h[-1])), None


def build_model(config: Config, spec: RegressionSpec, *, baseline: bool = False) -> Regressor:
    """Build the model of a run; with `baseline` the same on torch.nn's recurrent layers."""
    torch.manual_seed(config.seed)
    layers = recurrent(config, spec.inputs, config.layers, baseline=baseline)
    readout = nn.Linear(output_size(config, layers), spec.outputs)
    return Regressor(layers, readout, config.dropout, spec.per_step)
