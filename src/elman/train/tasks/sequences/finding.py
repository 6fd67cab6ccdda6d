"""Locating data: a file, a folder, or a name to download, from the UCR/UEA archive through aeon or
images through Hugging Face datasets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from elman.errors import InputError, RunError
from elman.extras import require
from elman.train.tasks.sequences.readers import (
    ENDINGS,
    as_half,
    flatten_images,
    read_npz,
    read_pair,
)
from elman.train.tasks.sequences.source import Half, Source

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
