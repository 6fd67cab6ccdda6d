"""Recurrent layers with a linear read-out of numbers, at each step or at the last; once trained, it
reads and predicts in the units of its data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elman.errors import InputError
from elman.layers.parts import first_output
from elman.train.loop.config import Config
from elman.train.loop.layers import output_size, reads_static, recurrent
from elman.train.loop.task import Trained, WholeModel
from elman.train.tasks.arrays import Scaling


@dataclass(frozen=True)
class RegressionSpec:
    """Sizes that a model of numbers is built from, and the units of its data.

    Attributes:
        inputs: I, values per step.
        outputs: O, values per target.
        per_step: whether there is a target per step.
        inputs_as, targets_as, static_as: how values are standardised.
    """

    inputs: int
    outputs: int
    per_step: bool
    inputs_as: Scaling
    targets_as: Scaling
    static_as: Scaling = field(default_factory=lambda: Scaling([], []))

    @property
    def statics(self) -> int:
        """S, static values per sequence."""
        return len(self.static_as.mean)

    def __post_init__(self) -> None:
        for scaling, size in ((self.inputs_as, self.inputs), (self.targets_as, self.outputs)):
            if not len(scaling.mean) == len(scaling.spread) == size:
                raise ValueError(f"a mean and a spread are wanted of each of {size} values")


@dataclass(frozen=True)
class TrainedRegression(Trained):
    """A trained model of numbers; ``model(x)`` has standardised x [T, B, I] and outputs, with
    static inputs ``model((x, static))``."""

    @torch.no_grad()
    def predict(self, x: np.ndarray, static: np.ndarray | None = None) -> np.ndarray:
        """Predict in the unit of the data.

        Args:
            x [N, T, I]: sequences as in the file that was trained on; NaN is missing.
            static [N, S]: their static inputs, if the file has such.

        Returns:
            [N, T, O], or of a target per sequence [N, O].

        Raises:
            InputError: x or static is of another shape.
        """
        spec, x = self.spec, np.asarray(x, np.float64)
        if x.ndim != 3 or x.shape[2] != spec.inputs:
            raise InputError(f"x must be [N, T, {spec.inputs}], not {[*x.shape]}")
        rows = self._tensor(spec.inputs_as.to(x)).transpose(0, 1).contiguous()
        about = self._static(static, len(x))
        outputs, _ = self.model(rows if about is None else (rows, about))
        values = spec.targets_as.back(outputs.float().cpu().numpy())
        return values.swapaxes(0, 1) if spec.per_step else values

    @torch.no_grad()
    def predict_step(
        self, x: np.ndarray, state: Any = None, static: np.ndarray | None = None
    ) -> tuple[np.ndarray, Any]:
        """Predict from one further step of sequences, in the unit of the data.

        Args:
            x [N, I]: a step of each sequence; NaN is missing.
            state: returned by the step before; None: sequences begin.
            static [N, S]: their static inputs, if the file has such.

        Returns:
            [N, O], and the state for the next step.

        Raises:
            InputError: x or static is of another shape.
        """
        spec, x = self.spec, np.asarray(x, np.float64)
        if x.ndim != 2 or x.shape[1] != spec.inputs:
            raise InputError(f"x must be [N, {spec.inputs}], not {[*x.shape]}")
        model: Any = self.model
        row, options = model.join(self._tensor(spec.inputs_as.to(x)), self._static(static, len(x)))
        if hasattr(model.layers, "step"):
            outputs, state = model.layers.step(row, state, **options)
            last = first_output(outputs)
        else:  # residual blocks
            outputs, state = model.layers(row.unsqueeze(0), state, **options)
            last = first_output(outputs)[0]
        values = model.readout(last).float().cpu().numpy()
        return spec.targets_as.back(values), state

    def as_module(self) -> WholeModel:
        """Return the whole model, from x [B, T, I] to [B, T, O] or [B, O] in the unit of the data.

        Raises:
            InputError: the data have static inputs.
        """
        if self.spec.statics:
            raise InputError("no export has static inputs", "join them to the inputs of each step")
        return _Whole(self)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.weight)

    def _static(self, static: np.ndarray | None, count: int) -> Tensor | None:
        """Static inputs of some sequences, standardised; None if the data has none."""
        if static is None and not self.spec.statics:
            return None
        values = np.empty((count, 0)) if static is None else np.asarray(static, np.float64)
        if values.shape != (count, self.spec.statics):
            raise InputError(
                f"static must be [{count}, {self.spec.statics}], not {[*values.shape]}",
                "" if self.spec.statics else "leave it out: the data has no static inputs",
            )
        return self._tensor(self.spec.static_as.to(values))


class _Whole(WholeModel):
    x_mean: Tensor
    x_spread: Tensor
    y_mean: Tensor
    y_spread: Tensor

    def __init__(self, run: TrainedRegression) -> None:
        super().__init__(run)
        for name, scaling in (("x", run.spec.inputs_as), ("y", run.spec.targets_as)):
            self.register_buffer(f"{name}_mean", torch.tensor(scaling.mean).to(run.weight))
            self.register_buffer(f"{name}_spread", torch.tensor(scaling.spread).to(run.weight))

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.model(((x - self.x_mean) / self.x_spread).transpose(0, 1))
        return (y.transpose(0, 1) if self.model.per_step else y) * self.y_spread + self.y_mean

    def example(self, inputs: Any) -> Tensor:
        return inputs.transpose(0, 1) * self.x_spread + self.x_mean

    def random(self) -> Tensor:
        return self.example(torch.randn(16, 2, len(self.x_mean)))


class Regressor(nn.Module):
    """Predicts numbers.

    Args:
        layers: outputs [T, B, H] (or several, of which the first is) and something = layers(x).
        readout: from [..., H] to [..., O].
        dropout: share of values dropped before the read-out.
        per_step: whether there is a target per step, or one from the last output.
        reads_static: whether the layers take static inputs; otherwise they are joined to those of
            each step.
    """

    def __init__(
        self,
        layers: nn.Module,
        readout: nn.Module,
        dropout: float,
        per_step: bool,
        reads_static: bool = False,
    ):
        super().__init__()
        self.layers = layers
        self.dropout = nn.Dropout(dropout)
        self.readout = readout
        self.per_step = per_step
        self.reads_static = reads_static

    def forward(self, x: Tensor | tuple[Tensor, Tensor], state: Any = None) -> tuple[Tensor, None]:
        """Predict.

        Args:
            x [T, B, I]: whole sequences; or (x, static [B, S]).
            state: unused; a sequence is read at once.

        Returns:
            outputs [T, B, O] or [B, O], and no state.
        """
        rows, options = self.join(*x) if isinstance(x, tuple) else (x, {})
        h = first_output(self.layers(rows, **options)[0])
        return self.readout(self.dropout(h if self.per_step else h[-1])), None

    def join(self, x: Tensor, static: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The layers' input [.., B, I] or [.., B, I + S] and options."""
        if static is None or self.reads_static:
            return x, {} if static is None else {"static": static}
        return torch.cat((x, static.expand(*x.shape[:-1], -1)), -1), {}


def build_model(config: Config, spec: RegressionSpec, *, baseline: bool = False) -> Regressor:
    """Build the model of a run; with `baseline` the same on torch.nn's recurrent layers."""
    torch.manual_seed(config.seed)
    reads = reads_static(config)
    sizes = (spec.inputs, spec.statics) if reads else (spec.inputs + spec.statics, 0)
    layers = recurrent(config, sizes[0], config.layers, sizes[1], baseline=baseline)
    readout = nn.Linear(output_size(config, layers), spec.outputs)
    return Regressor(layers, readout, config.dropout, spec.per_step, reads)
