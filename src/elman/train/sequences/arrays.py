"""Labelled arrays: `.npz` files, and the idx files of MNIST and its kin."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from elman.files import read_file
from elman.train.npz import load_npz
from elman.train.sequences.source import Half, Source, Values, unreadable

# The idx format's type codes (yann.lecun.com/exdb/mnist): big-endian numbers.
TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
IDX = {"train": ("train-images", "train-labels"), "test": ("t10k-images", "t10k-labels")}
LABELS = ("y", "label", "digit", "class")
GROUPS = ("speaker", "group")
NPZ_HINT = (
    "an .npz needs x_train, y_train, x_test, y_test; or audio_train (all recordings end to end) "
    "with length_train and label_train, and the same for test"
)


def read_npz(path: Path) -> Source:
    """Read arrays by name.

    Either ``x_<half>`` [N, T], [N, T, I] or images uint8 [N, H, W] or [N, H, W, C]; or
    ``audio_<half>`` [samples], all recordings end to end, with ``length_<half>`` [N]. Beside it
    ``y_``, ``label_``, ``digit_`` or ``class_<half>`` [N], and maybe ``speaker_`` or
    ``group_<half>`` [N], whose names may lie in ``speaker_names``.

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
        values = flat(named[1])
    elif named[1].ndim == 2:
        values = named[1][:, :, None]
    if named[0] == "x" and np.ndim(values) != 3:
        raise unreadable(path, f"x_{half} is of shape {list(named[1].shape)}", NPZ_HINT)
    if len(values) != len(labels[1]) or labels[1].ndim != 1 or not len(values):
        raise unreadable(path, f"{len(values)} sequences, {len(labels[1])} labels", NPZ_HINT)
    group = find(*GROUPS)
    names = [] if group is None else [str(name) for name in group[1]]
    if group is not None and f"{group[0]}_names" in arrays:
        names = [str(arrays[f"{group[0]}_names"][k]) for k in group[1]]
    return Half(values, [str(label) for label in labels[1]], names)


def flat(images: np.ndarray) -> np.ndarray:
    """Lay images [N, H, W] or [N, H, W, C] out as sequences of pixels [N, H·W, C]."""
    channels = images.shape[3] if images.ndim == 4 else 1
    return images.reshape(len(images), -1, channels)


def read_idx(folder: Path) -> Source:
    """Read the four idx files of a folder, gzipped or not.

    Raises:
        RunError: if one is missing or damaged.
    """
    halves = []
    for names in IDX.values():
        images, labels = (idx_array(idx_file(folder, name)) for name in names)
        if len(images) != len(labels):
            raise unreadable(folder, f"{len(images)} images, {len(labels)} labels")
        halves.append(Half(flat(images), [str(label) for label in labels]))
    return Source(str(folder), "pixels", *halves)


def idx_file(folder: Path, name: str) -> Path:
    """Find an idx file by the beginning of its name."""
    files = sorted(folder.glob(f"{name}*"))
    if not files:
        raise unreadable(folder, f"no file {name}-idx…", "train-images-idx3-ubyte[.gz] and so on")
    return files[0]


def idx_array(path: Path) -> np.ndarray:
    """Read one idx file."""
    try:
        raw = read_file(path)
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in TYPES:
        raise unreadable(path, "no idx file")
    rank, kind = raw[3], np.dtype(TYPES[raw[2]])
    shape = tuple(int(n) for n in np.frombuffer(raw[4 : 4 + 4 * rank], ">u4"))
    begin = 4 + 4 * rank
    if len(shape) != rank or len(raw) != begin + math.prod(shape) * kind.itemsize:
        raise unreadable(path, "cut short or changed")
    return np.frombuffer(raw, kind, offset=begin).reshape(shape)
