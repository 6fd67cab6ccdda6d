"""Sequences and their targets from a `.npz`: four arrays, each checked by name, as tensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from elman.errors import InputError, RunError
from elman.train.loop.config import other, setting
from elman.train.loop.objective import SQUARES, judged
from elman.train.loop.task import Baseline, Batch
from elman.train.tasks.regression.model import RegressionSpec, Scaling
from elman.train.tasks.sequences.readers import load_npz
from elman.train.tasks.sequences.source import unreadable
from elman.train.tasks.walks import WalkConfig, Walked


@dataclass(frozen=True)
class RegressionConfig(WalkConfig):
    """A run that predicts numbers."""

    TASK: ClassVar[str] = "regression"

    data: str | None = setting(
        None, "An .npz with x_train [N, T, I], y_train [N, T, O] or [N, O], x_test and y_test."
    )
    layers: int = other("layers", 1)
    hidden: int = other("hidden", 64)


LEAST = 2  # sequences of a half: what varies takes two
HINT = (
    "an .npz needs x_train [N, T, I], y_train [N, T, O] (a target per step) or [N, O] (one per "
    "sequence), and x_test, y_test"
)
RANKS = {"x": (2, 3), "y": (1, 2, 3)}


@dataclass(frozen=True)
class Half:
    """The training half or the held-out one.

    Attributes:
        x [N, T, I]: inputs, float64; NaN is missing.
        y [N, T, O] or [N, O]: targets, float64.
    """

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.x)

    @property
    def per_step(self) -> bool:
        """Whether there is a target per step."""
        return self.y.ndim == 3


def read_halves(data: str | None) -> tuple[Half, Half]:
    """Read what a user named.

    Returns:
        The training half and the held-out one.

    Raises:
        InputError: if nothing is named.
        RunError: with the array's name, if the file does not hold a data set.
    """
    if data is None:
        raise InputError("the task regression needs data: elman train regression FILE.npz")
    path = Path(data).expanduser()
    if not path.exists():
        raise RunError("the data file does not exist", path=path)
    arrays = load_npz(path, HINT)
    fit, held = (half_of(path, arrays, half) for half in ("train", "test"))
    for name in ("x", "y"):
        ours, theirs = getattr(fit, name), getattr(held, name)
        if (ours.ndim, ours.shape[-1]) != (theirs.ndim, theirs.shape[-1]):
            shapes = f"{name}_train is {list(ours.shape)}, {name}_test {list(theirs.shape)}"
            raise unreadable(path, shapes, HINT)
    return fit, held


def half_of(path: Path, arrays: dict[str, np.ndarray], half: str) -> Half:
    """Check and lay out one half's arrays."""
    x, y = (numbers(path, arrays, f"{name}_{half}") for name in ("x", "y"))
    x = x[:, :, None] if x.ndim == 2 else x
    y = y[:, None] if y.ndim == 1 else y
    if len(x) != len(y):
        raise unreadable(path, f"{len(x)} sequences in x_{half}, {len(y)} in y_{half}", HINT)
    if y.ndim == 3 and x.shape[1] != y.shape[1]:
        text = f"{x.shape[1]} steps in x_{half}, {y.shape[1]} in y_{half}"
        raise unreadable(path, text, HINT)
    if half == "train" and (empty := np.isnan(x).all((0, 1))).any():
        text = f"x_train has no value of channel {int(empty.argmax())}: all are NaN"
        raise unreadable(path, text, HINT)
    return Half(x, y)


def numbers(path: Path, arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Return an array as float64, once its kind, shape and values are those of a data set.

    NaN is missing among inputs, and an error among targets.
    """
    if name not in arrays:
        raise unreadable(path, f"no {name}: {', '.join(arrays) or 'no array at all'}", HINT)
    array = arrays[name]
    if array.dtype.kind not in "fiub":
        raise unreadable(path, f"{name} holds {array.dtype}, not real numbers", HINT)
    if array.ndim not in RANKS[name[0]] or 0 in array.shape[1:]:
        raise unreadable(path, f"{name} is of shape {list(array.shape)}", HINT)
    if len(array) < LEAST:
        text = f"{name} has {len(array)} rows (sequences); at least {LEAST} are needed"
        raise unreadable(path, text, HINT)
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    strange = ~np.isfinite(narrow)
    if name[0] == "x":
        strange &= ~np.isnan(narrow)
    if strange.any():
        kinds = "infinite (or beyond float32)" if name[0] == "x" else "NaN or infinite"
        text = f"{name} has {int(strange.sum())} values that are {kinds}"
        raise unreadable(path, text, HINT)
    return array.astype(np.float64)


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
    """Read and lay out the sequences of a run. Raises InputError, RunError: there is nothing
    readable."""
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
