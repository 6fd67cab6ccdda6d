"""A trained model of numbers, which reads and predicts in the units of its data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from elman.errors import InputError
from elman.train.trained import Sizes, Trained


@dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of each of C channels in the training half."""

    mean: list[float]
    spread: list[float]

    def to(self, values: np.ndarray) -> Tensor:
        """Standardise values [..., C], float32; what is missing becomes 0."""
        scaled = np.nan_to_num((values - np.array(self.mean)) / np.array(self.spread), nan=0.0)
        with np.errstate(over="ignore"):
            return torch.from_numpy(scaled.astype(np.float32))

    def back(self, scaled: Tensor) -> np.ndarray:
        """Return standardised values [..., C] in the unit of the data."""
        return scaled.double().numpy() * np.array(self.spread) + np.array(self.mean)


@dataclass(frozen=True)
class RegressionSpec(Sizes):
    """What a model of numbers is built from besides its configuration, and the data's units.

    Attributes:
        inputs_as, targets_as: how values are standardised.
    """

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
        rows = spec.inputs_as.to(x).transpose(0, 1).contiguous()
        outputs, _ = self.model(rows.to(self.weight))
        values = spec.targets_as.back(outputs.float().cpu())
        return values.swapaxes(0, 1) if spec.per_step else values
