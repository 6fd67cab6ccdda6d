"""Sequences and their targets from a `.npz`: four arrays, each checked by name, as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from elman.errors import InputError, RunError
from elman.train.loop.config import override, setting
from elman.train.loop.objective import SQUARES, evaluate
from elman.train.loop.task import Baseline, Batch
from elman.train.tasks.arrays import Scaling, digest_of, load_npz, unreadable
from elman.train.tasks.epochs import EpochConfig, SequenceSet, split_by_class
from elman.train.tasks.regression.model import RegressionSpec


@dataclass(frozen=True)
class RegressionConfig(EpochConfig):
    """A run that predicts numbers."""

    TASK: ClassVar[str] = "regression"

    data: str | None = setting(
        None, "An .npz with x_train [N, T, I], y_train [N, T, O] or [N, O], x_test and y_test."
    )
    layers: int = override("layers", 1)
    hidden: int = override("hidden", 64)


Arrays = tuple[np.ndarray, np.ndarray]  # x [N, T, I], y [N, T, O] or [N, O], float64
LEAST = 2  # sequences of a half: what varies takes two
HINT = (
    "an .npz needs x_train [N, T, I], y_train [N, T, O] (a target per step) or [N, O] (one per "
    "sequence), and x_test, y_test"
)
RANKS = {"x": (2, 3), "y": (1, 2, 3)}


def read_halves(data: str | None) -> tuple[Arrays, Arrays]:
    """Read the training half and the held-out one.

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
    fit, test = (read_half(path, arrays, half) for half in ("train", "test"))
    for name, a, b in zip("xy", fit, test, strict=True):
        if (a.ndim, a.shape[-1]) != (b.ndim, b.shape[-1]):
            shapes = f"{name}_train is {list(a.shape)}, {name}_test {list(b.shape)}"
            raise unreadable(path, shapes, HINT)
    return fit, test


def read_half(path: Path, arrays: dict[str, np.ndarray], half: str) -> Arrays:
    """Check and lay out one half's arrays."""
    x, y = (numbers(path, arrays, f"{name}_{half}") for name in ("x", "y"))
    if x.ndim == y.ndim == 2 and x.shape == y.shape and x.shape[1] > 1:
        text = (
            f"x_{half} and y_{half} are both {list(x.shape)}: a target per step, or per sequence?"
        )
        ways = f"y_{half}[:, :, None] is one per step, x_{half}[:, :, None] makes y_{half} one per"
        raise unreadable(path, text, f"{HINT}: {ways} sequence")
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
    return x, y


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
        hint = HINT if name[0] == "x" else "leave out sequences without a target; inputs may be NaN"
        raise unreadable(path, text, hint)
    return array.astype(np.float64)


@dataclass(frozen=True)
class Half:
    """One half as tensors, standardised: x [N, T, I]; y [N, T, O] or [N, O]."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)


class RegressionData(SequenceSet):
    """Sequences with a target per step, or one per sequence."""

    def shape(self) -> tuple[str, dict[str, Any]]:
        """Steps and targets, in words and as facts by name."""
        steps, outputs = [half.x.shape[1] for half in (self.fit, self.test)], self.spec.outputs
        per = "step" if self.spec.per_step else "sequence"
        text = f"{steps[0]} steps of {self.spec.inputs}; a target of {outputs} per {per}"
        return text, {"steps": steps, "values_per_target": outputs, "target_per": per}

    def baseline(self) -> Baseline:
        """Predict the mean of the training targets, or repeat the input if that is better."""
        x, y = self.validation_half.x, self.validation_half.y
        mean = score_baseline("mean of the training targets", [(y * 0, y)])
        if x.shape != y.shape:
            return mean
        repeated = self.spec.targets_as.to(self.spec.inputs_as.back(x.numpy()))
        repetition = score_baseline("repeated input", [(torch.from_numpy(repeated), y)])
        return min(mean, repetition, key=lambda baseline: baseline.loss)

    def cut(self, half: Half, rows: Tensor) -> Batch:
        """Take some sequences, x [T, B, I], y [T, B, O] or [B, O]."""
        x, y = half.x[rows].transpose(0, 1).contiguous(), half.y[rows]
        return Batch(x, y.transpose(0, 1) if self.spec.per_step else y, resets_state=True)


def score_baseline(name: str, pairs: Any) -> Baseline:
    """Score a predictor without a network, by pairs of predictions and targets [..., O]."""
    score = evaluate(SQUARES, pairs)
    return Baseline(name, score.loss, score.score)


def prepare(config: RegressionConfig) -> RegressionData:
    """Read and lay out the sequences of a run. Raises InputError, RunError: there is nothing
    readable."""
    arrays = read_halves(config.data)
    (x, y), test = arrays
    parts = {"train": (x, y), "test": test}
    if config.validation_share:
        learned, validated = split_by_class([0] * len(x), config.validation_share)
        parts |= {"train": (x[learned], y[learned]), "valid": (x[validated], y[validated])}
    scalings = map(Scaling.of, parts["train"])
    spec = RegressionSpec(x.shape[2], y.shape[-1], y.ndim == 3, *scalings)
    scaled = {name: (spec.inputs_as.to(x), spec.targets_as.to(y)) for name, (x, y) in parts.items()}
    halves = {name: Half(*map(torch.from_numpy, pair)) for name, pair in scaled.items()}
    for name, half in halves.items():
        for kind, values in (("x", half.x), ("y", half.y)):
            if not values.isfinite().all():
                text = f"{kind}_{name} is beyond float32 in standard deviations of {kind}_train"
                raise unreadable(Path(str(config.data)), text)
    absent = np.isnan(x).sum() + np.isnan(test[0]).sum()
    missing = float(absent / (x.size + test[0].size))
    digest = digest_of(array for half in arrays for array in half)
    ready = halves["train"], halves["test"], halves.get("valid")
    return RegressionData(config, str(config.data), digest, spec, *ready, missing=missing)
