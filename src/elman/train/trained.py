"""A trained model as a run folder has it, and what is known of the data it learned from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Trained:
    """A trained model with what one needs to use it.

    Attributes:
        path: the run folder.
        config: of the run.
        step: training steps that the weights have seen.
        model: in evaluation mode, on the CPU: ``outputs, state = model(inputs, state)``.
        spec: what the model is built from besides the configuration; of its task.
    """

    path: Path
    config: Any
    step: int
    model: nn.Module
    spec: Any

    @property
    def layers(self) -> nn.Module:
        """The recurrent layers: ``out, state = layers(x, state)``."""
        found: Any = self.model
        return found.layers

    @property
    def weight(self) -> Tensor:
        """A parameter, for the model's device and dtype."""
        return next(self.model.parameters())


@dataclass(frozen=True)
class Sizes:
    """What a model without a vocabulary, classes or units is built from.

    Attributes:
        inputs: I, values per step.
        outputs: O, values per target.
        per_step: whether there is a target per step.
    """

    inputs: int
    outputs: int
    per_step: bool
