"""Arrays of a `.npz` file, by name."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from elman.files import open_file
from elman.train.sequences.source import unreadable


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
