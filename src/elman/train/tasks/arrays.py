"""The arrays of a `.npz`, whoever wrote it."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from elman.errors import RunError
from elman.files import open_file

BROKEN = (OSError, ValueError, zipfile.BadZipFile, EOFError, zlib.error)


def load_npz(path: Path, hint: str) -> dict[str, np.ndarray]:
    """Read all arrays of a file.

    Args:
        hint: what the file should hold, for the message.

    Raises:
        RunError: if it is no such file; with the array's name, if one cannot be read.
    """
    place = ""
    try:
        with open_file(path) as raw:
            if not zipfile.is_zipfile(raw):
                raise ValueError("it is not an .npz")
            raw.seek(0)
            file, arrays = np.load(raw, allow_pickle=False), {}
            for name in file.files:
                place = f"{name}: "
                arrays[name] = file[name]
            return arrays
    except BROKEN as error:
        raise unreadable(path, f"{place}{error}", hint) from error


def unreadable(path: Path, error: object, hint: str = "") -> RunError:
    """Build the error for a file that cannot be used."""
    return RunError("the data file cannot be read", hint, path=path, error=error)
