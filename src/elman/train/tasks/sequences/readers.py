"""Labelled sequences from files: `.npz`, the tables of the UCR archive, and `.ts` through aeon."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from elman.errors import RunError
from elman.extras import require
from elman.files import read_file
from elman.train.tasks.arrays import load_npz, unreadable
from elman.train.tasks.sequences.source import Half, Source, Values

LABELS = ("y", "label", "digit", "class")
NPZ_HINT = (
    "an .npz needs x_train, y_train, x_test, y_test; or audio_train (all recordings end to end) "
    "with length_train and label_train, and the same for test"
)


def read_npz(path: Path) -> Source:
    """Read arrays by name.

    Either ``x_<half>`` [N, T], [N, T, I] or images uint8 [N, H, W] or [N, H, W, C]; or
    ``audio_<half>`` [samples], all recordings end to end, with ``length_<half>`` [N]. Beside it
    ``y_``, ``label_``, ``digit_`` or ``class_<half>`` [N].

    Raises:
        RunError: if the file is none, or arrays are missing or do not fit each other.
    """
    arrays = load_npz(path, NPZ_HINT)
    halves = [npz_half(path, arrays, half) for half in ("train", "test")]
    kind = "wave" if "audio_train" in arrays else "values"
    if kind == "values" and arrays["x_train"].dtype == np.uint8:
        kind = "pixels"
    return Source(str(path), kind, *halves)


def npz_half(path: Path, arrays: Mapping[str, np.ndarray], half: str) -> Half:
    """Collect one half's arrays."""

    def find(*names: str) -> tuple[str, np.ndarray] | None:
        return next(((n, arrays[f"{n}_{half}"]) for n in names if f"{n}_{half}" in arrays), None)

    named, labels = find("audio", "x"), find(*LABELS)
    if named is None or labels is None:
        raise unreadable(path, f"no x_{half} or no y_{half}: {', '.join(arrays)}", NPZ_HINT)
    values: Values = named[1]
    if named[0] == "audio":
        lengths = find("length")
        if lengths is None or lengths[1].sum() != len(values) or (lengths[1] < 1).any():
            raise unreadable(path, f"length_{half} does not divide audio_{half}", NPZ_HINT)
        values = np.split(named[1][:, None], np.cumsum(lengths[1])[:-1])
    elif named[1].dtype == np.uint8:
        values = flatten_images(named[1])
    elif named[1].ndim == 2:
        values = named[1][:, :, None]
    if named[0] == "x" and np.ndim(values) != 3:
        raise unreadable(path, f"x_{half} is of shape {list(named[1].shape)}", NPZ_HINT)
    if len(values) != len(labels[1]) or labels[1].ndim != 1 or not len(values):
        raise unreadable(path, f"{len(values)} sequences, {len(labels[1])} labels", NPZ_HINT)
    return Half(values, [str(label) for label in labels[1]])


def flatten_images(images: np.ndarray) -> np.ndarray:
    """Lay images [N, H, W] or [N, H, W, C] out as sequences of pixels [N, H·W, C]."""
    channels = images.shape[3] if images.ndim == 4 else 1
    return images.reshape(len(images), -1, channels)


ENDINGS = (".ts", ".tsv", ".txt", ".csv")


def read_pair(train: Path, test: Path) -> Source:
    """Read both halves of a data set. Raises RunError: with the line, if a table does not keep to
    its format; MissingPackageError: aeon is not installed, which reads .ts."""
    name = train.name.rpartition("_")[0]
    reader = read_ts if train.suffix == ".ts" else read_table
    return Source(f"{name} in {train.parent}", "values", reader(train), reader(test))


def read_ts(path: Path) -> Half:
    """Read a .ts file through aeon."""
    load = require("aeon.datasets", "a .ts file").load_from_ts_file
    if not path.is_file():
        raise RunError("the data file does not exist", path=path)
    try:
        return as_half(*load(str(path)))
    except Exception as error:  # whatever a damaged file makes a reader do
        text = str(error).partition("\n")[0]
        raise unreadable(path, f"{type(error).__name__}: {text}") from error


def as_half(pieces: Any, labels: Any) -> Half:
    """Take sequences [I, T] as aeon has them, and their classes."""
    values = [np.asarray(piece, np.float32).T for piece in pieces]
    return Half(values, [str(label) for label in labels])


def read_table(path: Path) -> Half:
    """Read a table: in each line a class, then one value per step; NaN at the end is padding."""
    try:
        lines = read_file(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    values, labels = [], []
    for number, line in enumerate(lines, 1):
        label, *texts = line.replace(",", " ").split() or ["#"]
        if label.startswith("#"):
            continue
        try:
            row = np.array([math.nan if text == "?" else float(text) for text in texts], np.float32)
        except ValueError as error:
            raise unreadable(path, f"line {number}: {error}") from error
        present = np.flatnonzero(~np.isnan(row))
        if not len(present):
            raise unreadable(path, f"line {number}: a sequence without values")
        values.append(row[: present[-1] + 1, None])
        labels.append(tidy(label))
    if not values:
        raise unreadable(path, "no sequences in it")
    return Half(values, labels)


def tidy(label: str) -> str:
    """Write a class that is a whole number without its decimals (1.0000000e+00 is class 1)."""
    try:
        value = float(label)
    except ValueError:
        return label
    return str(int(value)) if value.is_integer() else label
