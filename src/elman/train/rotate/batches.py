"""CIFAR-10 as it is published: pickled batches of arrays, read without running anything in them.

Format: https://www.cs.toronto.edu/~kriz/cifar.html, "CIFAR-10 python version": of each file, `data`
is uint8 [N, 3072], an image a row: 1024 red values, then green, then blue, each row by row.
"""

from __future__ import annotations

import codecs
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from elman.files import read_file
from elman.train.sequences.source import unreadable

TRAIN, TEST, INNER = "data_batch_", "test_batch", "cifar-10-batches-py"
HINT = "a folder with data_batch_1 … data_batch_5 and test_batch, or an .npz"


def empty_array(kind: type, shape: tuple[int, ...], code: Any) -> np.ndarray:
    """Make the array that a pickle fills; what numpy's own function of this place does."""
    if kind is not np.ndarray:
        raise pickle.UnpicklingError(f"{kind} is not an array")
    return np.ndarray(shape, code)


ALLOWED = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): empty_array,
    ("numpy._core.multiarray", "_reconstruct"): empty_array,
    ("_codecs", "encode"): codecs.encode,
}


class ArraysOnly(pickle.Unpickler):
    """Reads numbers, texts and arrays; whatever else a pickle names is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few names that an array is made of."""
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no array needs")
        return ALLOWED[module, name]


def is_cifar(folder: Path) -> bool:
    """Whether a folder, or the one that the archive makes in it, has such batches."""
    return any((place / TEST).is_file() for place in (folder, folder / INNER))


def read_cifar(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read all batches there are.

    Returns:
        Training and held-out images, each uint8 [N, 32, 32, 3].

    Raises:
        RunError: if a file is missing, damaged, or holds something else.
    """
    place = folder if (folder / TEST).is_file() else folder / INNER
    files = sorted(place.glob(f"{TRAIN}[0-9]*"))
    if not files:
        raise unreadable(place, f"no {TRAIN}1", HINT)
    return np.concatenate([read_batch(path) for path in files]), read_batch(place / TEST)


def read_batch(path: Path) -> np.ndarray:
    """Read one file, uint8 [N, 32, 32, 3]."""
    try:
        content = ArraysOnly(io.BytesIO(read_file(path)), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises anything
        raise unreadable(path, f"{type(error).__name__}: {error}", HINT) from error
    content = content if isinstance(content, dict) else {}
    data = content.get(b"data", content.get("data"))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3072,):
        raise unreadable(path, "data is not uint8 [N, 3072]", HINT)
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
