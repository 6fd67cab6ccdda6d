"""Labelled sequences as they were read, before anything is done to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elman.errors import InputError, RunError
from elman.extras import require
from elman.files import read_file
from elman.train.tasks.arrays import digest_of, load_npz, unreadable

Values = np.ndarray | Sequence[np.ndarray]


@dataclass(frozen=True)
class Half:
    """The training half or the held-out one.

    Attributes:
        values: N sequences [T, I] of any lengths, or one array [N, T, I].
        labels: N names of classes.
    """

    values: Values
    labels: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int]) -> Half:
        """Some of the sequences."""
        values = self.values
        taken = values[indices] if isinstance(values, np.ndarray) else [values[k] for k in indices]
        return Half(taken, [self.labels[k] for k in indices])


@dataclass(frozen=True)
class Source:
    """A data set as read.

    Attributes:
        name: where it came from, for people.
        kind: "values", "wave" (raw audio) or "pixels": how it is scaled.
    """

    name: str
    kind: str
    train: Half
    test: Half

    @property
    def digest(self) -> str:
        """Hash of all values and labels."""
        halves = (self.train, self.test)
        words = [self.kind, *(list(half.labels) for half in halves)]
        return digest_of((piece for half in halves for piece in half.values), repr(words))


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

    audio, labels = find("audio", "x"), find(*LABELS)
    if audio is None or labels is None:
        raise unreadable(path, f"no x_{half} or no y_{half}: {', '.join(arrays)}", NPZ_HINT)
    values: Values = audio[1]
    if audio[0] == "audio":
        lengths = find("length")
        if lengths is None or lengths[1].sum() != len(values) or (lengths[1] < 1).any():
            raise unreadable(path, f"length_{half} does not divide audio_{half}", NPZ_HINT)
        values = np.split(audio[1][:, None], np.cumsum(lengths[1])[:-1])
    elif audio[1].dtype == np.uint8:
        values = flatten_images(audio[1])
    elif audio[1].ndim == 2:
        values = audio[1][:, :, None]
    if audio[0] == "x" and np.ndim(values) != 3:
        raise unreadable(path, f"x_{half} is of shape {list(audio[1].shape)}", NPZ_HINT)
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


IDX = "train-images"  # how a file of the folder begins in which MNIST is published


def archive_series(name: str) -> Source:
    """Fetch a data set of the UCR/UEA archive (EigenWorms, …); aeon keeps it for the next time.
    Raises MissingPackageError: aeon is not installed; RunError: it knows no such name, or has no
    network."""
    load = package("aeon.datasets").load_classification
    halves = [as_half(*fetch(name, load, name, split=split)) for split in ("train", "test")]
    return Source(f"{name} of the UCR/UEA archive", "values", *halves)


def hub_images(name: str) -> Source:
    """Fetch an image data set from the Hugging Face hub ("ylecun/mnist", "uoft-cs/cifar10"). Raises
    MissingPackageError: datasets is not installed; RunError: it knows no such name, or has no
    network."""
    dataset = fetch(name, package("datasets").load_dataset, name)
    halves = []
    for part in (dataset["train"], dataset["test"]):
        columns = part.column_names
        image = next((column for column in ("image", "img") if column in columns), "")
        label = next((column for column in ("label", "fine_label") if column in columns), "")
        if not image or not label:
            raise RunError(f"{name} has no images with labels", columns=", ".join(columns))
        pixels = np.stack([np.asarray(picture, np.uint8) for picture in part[image]])
        halves.append(Half(flatten_images(pixels), [str(number) for number in part[label]]))
    return Source(f"{name} of the Hugging Face hub", "pixels", *halves)


def package(name: str) -> Any:
    """Import a module that fetches data sets. Raises MissingPackageError: its package is not
    installed."""
    return require(name, "a data set by its name, not of a file or folder,")


def fetch(name: str, load: Any, *words: Any, **options: Any) -> Any:
    """Call a loader; whatever goes wrong in it is raised as one error."""
    try:
        return load(*words, **options)
    except Exception as error:
        text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        hint = "a file or folder can be named instead"
        raise RunError("the data set cannot be fetched", hint, name=name, error=text) from error


def find_series(data: str | None) -> Source:
    """Read time series. Raises InputError: nothing is named; RunError: there is nothing
    readable."""
    return _find(data, "series", archive_series, _series_of)


def find_images(data: str | None) -> Source:
    """Read images as sequences of pixels. Raises InputError: nothing is named; RunError: there is
    nothing readable, or it holds no images."""
    source = _find(data, "images", hub_images, _images_of)
    if source.kind != "pixels":
        raise RunError("these are not images", "elman train series", path=source.name)
    return source


def _find(
    data: str | None, task: str, fetch: Callable[[str], Source], reader: Callable[[Path], Source]
) -> Source:
    if data is None:
        raise InputError(f"the task {task} needs data: elman train {task} FILE_FOLDER_OR_NAME")
    path = Path(data).expanduser()
    if path.exists():
        return reader(path)
    if path.suffix or len(path.parts) > 2 or path.is_absolute():
        raise RunError("the data file or folder does not exist", path=path)
    return fetch(data)


def _series_of(path: Path) -> Source:
    if path.is_file() and path.suffix == ".npz":
        return read_npz(path)
    if path.is_file():
        train = path.with_name(path.name.replace("_TEST", "_TRAIN"))
        test = path.with_name(path.name.replace("_TRAIN", "_TEST"))
        if train == test or path.suffix not in ENDINGS:
            hint = "NAME_TRAIN.tsv, .csv or .ts, with NAME_TEST beside it; or an .npz"
            raise RunError("the file is not half of a data set", hint, path=path)
        return read_pair(train, test)
    files = sorted(
        file for file in path.iterdir() if file.suffix in ENDINGS and file.stem.endswith("_TRAIN")
    )
    by_stem = {file.stem: file for file in files}  # .txt and .tsv, which need no aeon, before .ts
    if len(by_stem) == 1:
        return _series_of(next(iter(by_stem.values())))
    return _only_npz(path, "NAME_TRAIN.tsv, .csv or .ts, or an .npz", [file.name for file in files])


def _images_of(path: Path) -> Source:
    if path.is_file():
        return read_npz(path)
    if any(path.glob(f"{IDX}*")):
        hint = "elman train images ylecun/mnist, or an .npz of what the idx files hold"
        raise RunError("idx files are not read", hint, path=path)
    return _only_npz(path, "an .npz", [])


def _only_npz(folder: Path, expected: str, further: list[str]) -> Source:
    """Read the one .npz of a folder."""
    files = sorted(folder.glob("*.npz"))
    if len(files) == 1 and not further:
        return read_npz(files[0])
    names = [*further, *(file.name for file in files)]
    raise RunError(
        "the folder does not hold exactly one data set",
        "name one of the files" if names else "",
        path=folder,
        found=", ".join(names[:5]) or "none",
        wanted=f"one data set: {expected}",
    )
