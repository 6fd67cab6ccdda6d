"""Sequences and their targets from a `.npz`: four arrays, each checked by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elman.errors import InputError, RunError, diagnostic
from elman.train.npz import load_npz
from elman.train.sequences.source import unreadable

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
        raise RunError(diagnostic("the data file does not exist", [("path", str(path))]))
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
