"""Sequences and their targets as tensors, cut into batches."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.train.objective import SQUARES, judged
from elman.train.regression.arrays import Half, read_halves
from elman.train.regression.config import RegressionConfig
from elman.train.regression.trained import RegressionSpec, Scaling
from elman.train.sequences.source import unreadable
from elman.train.task import Baseline, Batch
from elman.train.walks import Walked


@dataclass(frozen=True)
class Laid:
    """One half as tensors, standardised: x [N, T, I]; y [N, T, O] or [N, O]."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class RegressionData(Walked):
    """A data set ready to train on.

    Attributes:
        inputs_as, targets_as: how values are standardised.
        rows [M]: which held-out sequences are validated on.
        missing: share of inputs that are missing (they count as their channel's mean).
    """

    config: RegressionConfig
    name: str
    digest: str
    inputs_as: Scaling
    targets_as: Scaling
    fit: Laid
    held: Laid
    rows: Tensor
    missing: float

    @property
    def size(self) -> str:
        """How many sequences there are."""
        return f"{len(self.fit)} + {len(self.held)} sequences"

    @property
    def per_step(self) -> bool:
        """Whether there is a target per step."""
        return self.fit.y.ndim == 3

    @property
    def inputs(self) -> int:
        """I, values per step."""
        return self.fit.x.shape[2]

    @property
    def outputs(self) -> int:
        """O, values per target."""
        return self.fit.y.shape[-1]

    def about(self) -> str:
        """Say in one line what the data are."""
        where = "step" if self.per_step else "sequence"
        text = (
            f"data: {self.name}: {len(self.fit):,} sequences to learn from, {len(self.held):,} "
            f"held out; {self.fit.x.shape[1]} steps of {self.inputs}; a target of {self.outputs} "
            f"per {where}"
        )
        return f"{text}; {self.missing:.1%} of the inputs are missing" if self.missing else text

    def facts(self) -> dict[str, Any]:
        """Return what a report says about the data."""
        return {
            "source": self.name,
            "train_sequences": len(self.fit),
            "held_out_sequences": len(self.held),
            "validated": len(self.rows),
            "steps": [self.fit.x.shape[1], self.held.x.shape[1]],
            "values_per_step": self.inputs,
            "values_per_target": self.outputs,
            "target_per": "step" if self.per_step else "sequence",
            "missing_share": self.missing,
        }

    def spec(self) -> RegressionSpec:
        """What a model of these sequences is built from, and their units."""
        sizes = (self.inputs, self.outputs, self.per_step)
        return RegressionSpec(*sizes, self.inputs_as, self.targets_as)

    def baseline(self) -> Baseline:
        """Predict the mean of the training targets, or repeat the input if that is better."""
        mean = predicting("mean of the training targets", [(self.held.y * 0, self.held.y)])
        if self.held.x.shape != self.held.y.shape:
            return mean
        repeated = self.targets_as.to(self.inputs_as.back(self.held.x))
        again = predicting("repeated input", [(repeated, self.held.y)])
        return min(mean, again, key=lambda baseline: baseline.loss)

    def _cut(self, half: Laid, chosen: Tensor) -> Batch:
        """Take some sequences, x [T, B, I], y [T, B, O] or [B, O]."""
        x, y = half.x[chosen].transpose(0, 1).contiguous(), half.y[chosen]
        return Batch(x, y.transpose(0, 1) if self.per_step else y, begins=True)


def predicting(name: str, pairs: Any) -> Baseline:
    """Score what is not a network: pairs of predictions and targets [..., O]."""
    found = judged(SQUARES, pairs)
    return Baseline(name, found.loss, r2=found.score)


def prepare(config: RegressionConfig) -> RegressionData:
    """Read and lay out the sequences of a run.

    Raises:
        InputError, RunError: if there is nothing readable.
    """
    fit, held = read_halves(config.data)
    inputs_as, targets_as = scaling_of(fit.x), scaling_of(fit.y)
    gone = sum(int(np.isnan(half.x).sum()) for half in (fit, held))
    data = RegressionData(
        config=config,
        name=str(config.data),
        digest=digest_of(fit, held),
        inputs_as=inputs_as,
        targets_as=targets_as,
        fit=Laid(inputs_as.to(fit.x), targets_as.to(fit.y)),
        held=Laid(inputs_as.to(held.x), targets_as.to(held.y)),
        rows=torch.empty(0, dtype=torch.long),
        missing=gone / (fit.x.size + held.x.size),
    )
    for name, laid in (("train", data.fit), ("test", data.held)):
        for kind, values in (("x", laid.x), ("y", laid.y)):
            if not values.isfinite().all():
                text = f"{kind}_{name} is beyond float32 in standard deviations of {kind}_train"
                raise unreadable(Path(data.name), text)
    return data.validating(config)


def scaling_of(values: np.ndarray) -> Scaling:
    """Measure values [..., C], NaN left out; what does not vary is not scaled."""
    rows = values.reshape(-1, values.shape[-1])
    spread = np.nanstd(rows, 0)
    return Scaling(np.nanmean(rows, 0).tolist(), np.where(spread > 0, spread, 1.0).tolist())


def digest_of(*halves: Half) -> str:
    """Hash all values."""
    hashed = hashlib.sha256()
    for array in (array for half in halves for array in (half.x, half.y)):
        hashed.update(repr(array.shape).encode())
        hashed.update(np.ascontiguousarray(array).data)
    return hashed.hexdigest()
