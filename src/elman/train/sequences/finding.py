"""What a user named as data: a file, a folder, or a name to be fetched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elman.errors import InputError, RunError, diagnostic
from elman.train.sequences.arrays import IDX, read_idx, read_npz
from elman.train.sequences.download import archive_series, hub_images
from elman.train.sequences.source import Source
from elman.train.sequences.tables import ENDINGS, read_pair


def find_series(data: str | None) -> Source:
    """Read time series.

    Raises:
        InputError: if nothing is named.
        RunError: if there is nothing readable.
    """
    return _find(data, "series", archive_series, _series_of)


def find_images(data: str | None) -> Source:
    """Read images as sequences of pixels.

    Raises:
        InputError: if nothing is named.
        RunError: if there is nothing readable, or it holds no images.
    """
    source = _find(data, "images", hub_images, _images_of)
    if source.kind != "pixels":
        raise RunError(
            diagnostic("these are not images", [("path", source.name)], "elman train series")
        )
    return source


def _find(
    data: str | None, task: str, fetch: Callable[[str], Source], read: Callable[[Path], Source]
) -> Source:
    if data is None:
        raise InputError(f"the task {task} needs data: elman train {task} FILE_FOLDER_OR_NAME")
    path = Path(data).expanduser()
    if path.exists():
        return read(path)
    if path.suffix or len(path.parts) > 2 or path.is_absolute():
        raise RunError(diagnostic("the data file or folder does not exist", [("path", str(path))]))
    return fetch(data)


def _series_of(path: Path) -> Source:
    if path.is_file() and path.suffix == ".npz":
        return read_npz(path)
    if path.is_file():
        train = path.with_name(path.name.replace("_TEST", "_TRAIN"))
        test = path.with_name(path.name.replace("_TRAIN", "_TEST"))
        if train == test or path.suffix not in ENDINGS:
            raise RunError(
                diagnostic(
                    "the file is not half of a data set",
                    [("path", str(path))],
                    hint="NAME_TRAIN.tsv or .ts, with NAME_TEST beside it; or an .npz",
                )
            )
        return read_pair(train, test)
    files = sorted(
        file for file in path.iterdir() if file.suffix in ENDINGS and file.stem.endswith("_TRAIN")
    )
    by_stem = {file.stem: file for file in reversed(files)}  # .ts before .tsv before .txt
    if len(by_stem) == 1:
        return _series_of(next(iter(by_stem.values())))
    return _only_npz(path, "NAME_TRAIN.ts or .tsv", [file.name for file in files])


def _images_of(path: Path) -> Source:
    if path.is_file():
        return read_npz(path)
    if any(path.glob(f"{IDX['train'][0]}*")):
        return read_idx(path)
    return _only_npz(path, "train-images-idx3-ubyte and its kin", [])


def _only_npz(folder: Path, wanted: str, others: list[str]) -> Source:
    """Read the one .npz of a folder."""
    files = sorted(folder.glob("*.npz"))
    if len(files) == 1 and not others:
        return read_npz(files[0])
    names = [*others, *(file.name for file in files)]
    details = [
        ("path", str(folder)),
        ("found", ", ".join(names[:5]) or "none"),
        ("wanted", f"one data set: {wanted}, or an .npz"),
    ]
    hint = "name one of the files" if names else ""
    raise RunError(diagnostic("the folder does not hold exactly one data set", details, hint))
