"""Arrays of data sets: reading untrusted `.npz` files, hashing, standardising."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

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


def digest_of(arrays: Iterable[np.ndarray], words: str = "") -> str:
    """Hash some words, and the shapes and values of arrays."""
    digest = hashlib.sha256(words.encode())
    for array in arrays:
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Scaling:
    """Mean and standard deviation of each of C channels in the training half."""

    mean: list[float]
    spread: list[float]

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        """Measure values [..., C], NaN left out; what does not vary is not scaled."""
        axes = tuple(range(values.ndim - 1))
        spread = np.nanstd(values, axes, dtype=np.float64)
        mean = np.asarray(np.nanmean(values, axes, dtype=np.float64))
        return cls(mean.tolist(), np.where(spread > 0, spread, 1.0).tolist())

    def to(self, values: np.ndarray, missing: float = 0.0) -> np.ndarray:
        """Standardise values [..., C], float32; what is missing becomes a number, or NaN."""
        scaled = np.nan_to_num((values - np.array(self.mean)) / np.array(self.spread), nan=missing)
        with np.errstate(over="ignore"):
            return scaled.astype(np.float32)

    def back(self, scaled: np.ndarray) -> np.ndarray:
        """Return standardised values [..., C] in the unit of the data, float64."""
        return scaled.astype(np.float64) * np.array(self.spread) + np.array(self.mean)
