"""Labelled sequences from files: `.npz`, the idx files of MNIST and its kin, and the time series of
the UCR and UEA archives: `.tsv` (and `.txt`) tables, and `.ts` files.

Formats: timeseriesclassification.com; `.ts` as described by the documentation of aeon 1.x
("The ts file format"). They are read here, not by aeon, so that a file needs no further package
and a mistake in it is reported with its line.
"""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from elman.files import open_file, read_file
from elman.train.tasks.sequences.source import Half, Source, Values, unreadable


def load_npz(path: Path, hint: str) -> dict[str, np.ndarray]:
    """Read all arrays of a file.

    Args:
        hint: what the file should hold, for the message.

    Raises:
        RunError: if it is no such file; with the array's name, if one cannot be read.
    """
    try:
        with open_file(path) as raw:
            if not zipfile.is_zipfile(raw):
                raise unreadable(path, "it is not an .npz", hint)
            raw.seek(0)
            file = np.load(raw, allow_pickle=False)
            return {name: member(path, file, name, hint) for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise unreadable(path, error, hint) from error


def member(path: Path, file: np.lib.npyio.NpzFile, name: str, hint: str) -> np.ndarray:
    """Read one array."""
    try:
        return file[name]
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise unreadable(path, f"{name}: {error}", hint) from error


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
    """Read the four idx files of a folder, gzipped or not. Raises RunError: one is missing or
    damaged."""
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


ENDINGS = (".ts", ".tsv", ".txt")


def read_pair(train: Path, test: Path) -> Source:
    """Read both halves of a data set."""
    name = train.name.rpartition("_")[0]
    return Source(f"{name} in {train.parent}", "values", read_half(train), read_half(test))


def read_half(path: Path) -> Half:
    """Read one file; missing values are NaN. Raises RunError: with the line, if the file does not
    keep to its format."""
    try:
        lines = read_file(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    numbered = ((k, line.strip()) for k, line in enumerate(lines, 1))
    written = ((k, line) for k, line in numbered if line and not line.startswith("#"))
    read = ts_rows if path.suffix == ".ts" else table_rows
    pieces, labels = [], []
    for number, piece, label in read(path, written):
        if pieces and piece.shape[1] != pieces[0].shape[1]:
            shape = f"{piece.shape[1]} channels, {pieces[0].shape[1]} in the first sequence"
            raise unreadable(path, f"line {number}: {shape}")
        if not len(piece):
            raise unreadable(path, f"line {number}: a sequence without values")
        pieces.append(piece)
        labels.append(label)
    if not pieces:
        raise unreadable(path, "no sequences in it")
    return Half(pieces, labels)


def table_rows(
    path: Path, lines: Iterable[tuple[int, str]]
) -> Iterator[tuple[int, np.ndarray, str]]:
    """Read a table: a class, then one value per step; NaN at the end is padding."""
    for number, line in lines:
        label, *texts = line.replace(",", " ").split()
        values = numbers(path, number, texts)
        known = np.flatnonzero(~np.isnan(values))
        end = known[-1] + 1 if len(known) else 0
        yield number, values[:end, None], tidy(label)


def ts_rows(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, np.ndarray, str]]:
    """Read a .ts file: a header, then channels divided by colons, the class last."""
    begun = False
    for number, line in lines:
        if line.startswith("@"):
            key, _, value = line[1:].partition(" ")
            begun = begun or key.lower() == "data"
            key, stated = key.lower(), value.strip().lower().startswith("true")
            if key == "timestamps" and stated:
                raise unreadable(path, f"line {number}: series with time stamps are not supported")
            if key in ("classlabel", "targetlabel") and not stated:
                raise unreadable(path, f"line {number}: the series have no classes")
            continue
        if not begun:
            raise unreadable(path, f"line {number}: values before @data")
        *channels, label = line.split(":")
        if not channels:
            raise unreadable(path, f"line {number}: no colon between values and class")
        columns = [numbers(path, number, channel.split(",")) for channel in channels]
        if len({len(column) for column in columns}) > 1:
            raise unreadable(path, f"line {number}: channels of different lengths")
        yield number, np.stack(columns, 1), tidy(label.strip())


def numbers(path: Path, number: int, texts: list[str]) -> np.ndarray:
    """Read numbers, float32; `?` is a missing one."""
    try:
        return np.array([math.nan if text == "?" else float(text) for text in texts], np.float32)
    except ValueError as error:
        raise unreadable(path, f"line {number}: {error}") from error


def tidy(label: str) -> str:
    """Write a class that is a whole number without its decimals (1.0000000e+00 is class 1)."""
    try:
        value = float(label)
    except ValueError:
        return label
    return str(int(value)) if value.is_integer() else label
