"""Data sets by name: the UCR/UEA archive through aeon, images through Hugging Face datasets."""

from __future__ import annotations

from typing import Any

import numpy as np

from elman.errors import RunError, diagnostic
from elman.extras import require
from elman.train.sequences.arrays import flat
from elman.train.sequences.source import Half, Source


def archive_series(name: str) -> Source:
    """Fetch a data set of the UCR/UEA archive (EigenWorms, …); aeon keeps it for the next time.

    Raises:
        MissingPackageError: aeon is not installed.
        RunError: it knows no such name, or has no network.
    """
    load = package("aeon.datasets").load_classification
    halves = []
    for split in ("train", "test"):
        pieces, labels = fetched(name, load, name, split=split)
        values = [np.asarray(piece, np.float32).T for piece in pieces]  # aeon has [I, T]
        halves.append(Half(values, [str(label) for label in labels]))
    return Source(f"{name} of the UCR/UEA archive", "values", *halves)


def hub_images(name: str) -> Source:
    """Fetch an image data set from the Hugging Face hub ("ylecun/mnist", "uoft-cs/cifar10").

    Raises:
        MissingPackageError: datasets is not installed.
        RunError: it knows no such name, or has no network.
    """
    whole = fetched(name, package("datasets").load_dataset, name)
    halves = []
    for split in ("train", "test"):
        part = whole[split]
        image = next((column for column in ("image", "img") if column in part.column_names), "")
        label = next(
            (column for column in ("label", "fine_label") if column in part.column_names), ""
        )
        if not image or not label:
            columns = ", ".join(part.column_names)
            raise RunError(diagnostic(f"{name} has no images with labels", [("columns", columns)]))
        pixels = np.stack([np.asarray(picture, np.uint8) for picture in part[image]])
        halves.append(Half(flat(pixels), [str(number) for number in part[label]]))
    return Source(f"{name} of the Hugging Face hub", "pixels", *halves)


def package(name: str) -> Any:
    """Import a module that fetches data sets.

    Raises:
        MissingPackageError: its package is not installed.
    """
    return require(name, "a data set by its name, not of a file or folder,")


def fetched(name: str, load: Any, *words: Any, **options: Any) -> Any:
    """Call a loader; whatever goes wrong in it is raised as one error."""
    try:
        return load(*words, **options)
    except Exception as error:
        said = str(error).partition("\n")[0]
        details = [("name", name), ("error", f"{type(error).__name__}: {said}")]
        hint = "a file or folder can be named instead"
        raise RunError(diagnostic("the data set cannot be fetched", details, hint)) from error
