"""Sequences and their targets from a `.npz`: four arrays, each checked by name, as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from elman.errors import InputError, RunError
from elman.train.loop.config import override, setting
from elman.train.loop.layers import reads_static
from elman.train.loop.objective import SQUARES, evaluate
from elman.train.loop.task import Baseline, Batch
from elman.train.tasks.arrays import Scaling, digest_of, load_npz, unreadable
from elman.train.tasks.epochs import EpochConfig, SequenceSet, split_by_class
from elman.train.tasks.regression.model import RegressionSpec


@dataclass(frozen=True)
class RegressionConfig(EpochConfig):
    """A run that predicts numbers."""

    TASK: ClassVar[str] = "regression"
    TAKES_STATIC: ClassVar[bool] = True

    data: str | None = setting(
        None,
        "An .npz with x_train [N, T, I], y_train [N, T, O] or [N, O], perhaps static_train [N, S], "
        "and the same of test.",
    )
    layers: int = override("layers", 1)
    hidden: int = override("hidden", 64)


class Arrays(NamedTuple):
    """One half in float64, NaN where a value is missing: x [N, T, I], y [N, T, O] or [N, O],
    static [N, S]."""

    x: np.ndarray
    y: np.ndarray
    static: np.ndarray


LEAST = 2  # sequences of a half: what varies takes two
HINT = (
    "an .npz needs x_train [N, T, I], y_train [N, T, O] (a target per step) or [N, O] (one per "
    "sequence), and x_test, y_test; static_train and static_test [N, S] are optional"
)
RANKS = {"x": (2, 3), "y": (1, 2, 3), "static": (1, 2)}


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
    for name, a, b in zip(Arrays._fields, fit, test, strict=True):
        if (a.ndim, a.shape[-1]) != (b.ndim, b.shape[-1]):
            shapes = f"{name}_train is {list(a.shape)}, {name}_test {list(b.shape)}"
            raise unreadable(path, shapes, HINT)
    return fit, test


def read_half(path: Path, arrays: dict[str, np.ndarray], half: str) -> Arrays:
    """Check and lay out one half's arrays."""
    x, y = (numbers(path, arrays, name, half) for name in ("x", "y"))
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
    static = np.empty((len(x), 0))
    if f"static_{half}" in arrays:
        static = numbers(path, arrays, "static", half)
        static = static[:, None] if static.ndim == 1 else static
        if len(static) != len(x):
            text = f"{len(x)} sequences in x_{half}, {len(static)} in static_{half}"
            raise unreadable(path, text, HINT)
    made = Arrays(x, y, static)
    for name, values in made._asdict().items():
        empty = np.isnan(values).all(tuple(range(values.ndim - 1)))
        if empty.any() and (half == "train" or name == "y"):
            kind = "output" if name == "y" else "channel"
            text = f"{name}_{half} has no value of {kind} {int(empty.argmax())}: all are NaN"
            raise unreadable(path, text, HINT)
    return made


def numbers(path: Path, arrays: dict[str, np.ndarray], kind: str, half: str) -> np.ndarray:
    """Return an array as float64, once its kind, shape and values are those of a data set; NaN is
    missing."""
    name = f"{kind}_{half}"
    if name not in arrays:
        raise unreadable(path, f"no {name}: {', '.join(arrays) or 'no array at all'}", HINT)
    array = arrays[name]
    if array.dtype.kind not in "fiub":
        raise unreadable(path, f"{name} holds {array.dtype}, not real numbers", HINT)
    if array.ndim not in RANKS[kind] or 0 in array.shape[1:]:
        raise unreadable(path, f"{name} is of shape {list(array.shape)}", HINT)
    if len(array) < LEAST:
        text = f"{name} has {len(array)} rows (sequences); at least {LEAST} are needed"
        raise unreadable(path, text, HINT)
    with np.errstate(over="ignore"):
        narrow = array.astype(np.float32)
    strange = int(np.isinf(narrow).sum())
    if strange:
        text = f"{name} has {strange} values that are infinite (or beyond float32)"
        raise unreadable(path, text, HINT)
    return array.astype(np.float64)


@dataclass(frozen=True)
class Half:
    """One half as tensors, standardised: x [N, T, I]; y [N, T, O] or [N, O], NaN where there is no
    target; static [N, S]."""

    x: Tensor
    y: Tensor
    static: Tensor

    def __len__(self) -> int:
        return len(self.x)


class RegressionData(SequenceSet):
    """Sequences with a target per step, or one per sequence."""

    def shape(self) -> tuple[str, dict[str, Any]]:
        """Steps and targets, in words and as facts by name."""
        steps, outputs = [half.x.shape[1] for half in (self.fit, self.test)], self.spec.outputs
        per = "step" if self.spec.per_step else "sequence"
        text = f"{steps[0]} steps of {self.spec.inputs}; a target of {outputs} per {per}"
        text += f"; {self.spec.statics} static inputs" * bool(self.spec.statics)
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
        """Take some sequences, x [T, B, I], with static inputs (x, static [B, S]); y [T, B, O] or
        [B, O]."""
        x, y = half.x[rows].transpose(0, 1).contiguous(), half.y[rows]
        x = (x, half.static[rows]) if self.spec.statics else x
        return Batch(x, y.transpose(0, 1) if self.spec.per_step else y, resets_state=True)


def score_baseline(name: str, pairs: Any) -> Baseline:
    """Score a predictor without a network, by pairs of predictions and targets [..., O]."""
    score = evaluate(SQUARES, pairs)
    return Baseline(name, score.loss, score.score)


def prepare(config: RegressionConfig) -> RegressionData:
    """Read and lay out the sequences of a run. Raises InputError, RunError: there is nothing
    readable."""
    whole, test = read_halves(config.data)
    if reads_static(config) and not whole.static.shape[1]:
        text = f"{config.cell} reads static inputs, and there is no static_train"
        raise unreadable(Path(str(config.data)), text, HINT)
    parts = {"train": whole, "test": test}
    if config.validation_share:
        indices = split_by_class([0] * len(whole.x), config.validation_share)
        for name, rows in zip(("train", "valid"), indices, strict=True):
            parts[name] = Arrays(*(values[rows] for values in whole))
    x_as, y_as, static_as = map(Scaling.of, parts["train"])
    sizes = whole.x.shape[2], whole.y.shape[-1], whole.y.ndim == 3
    spec = RegressionSpec(*sizes, x_as, y_as, static_as)
    halves = dict[str, Half]()
    for name, part in parts.items():
        scaled = x_as.to(part.x), y_as.to(part.y, np.nan), static_as.to(part.static)
        halves[name] = Half(*map(torch.from_numpy, scaled))
        for kind, values in zip(Arrays._fields, scaled, strict=True):
            if np.isinf(values).any():
                text = f"{kind}_{name} is beyond float32 in standard deviations of {kind}_train"
                raise unreadable(Path(str(config.data)), text)
    given = [values for half in (whole, test) for values in half if values.size]
    xs = [half.x for half in (whole, test)]
    missing = float(sum(np.isnan(x).sum() for x in xs) / sum(x.size for x in xs))
    ready = halves["train"], halves["test"], halves.get("valid")
    digest = digest_of(given)
    return RegressionData(config, str(config.data), digest, spec, *ready, missing=missing)
