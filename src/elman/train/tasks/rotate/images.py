"""Grey images to be turned: of a `.npz`, of CIFAR-10's python batches, or parts of a photograph.

CIFAR-10 is read without running anything in its pickles. Format:
https://www.cs.toronto.edu/~kriz/cifar.html, "CIFAR-10 python version": of each file, `data`
is uint8 [N, 3072], an image a row: 1024 red values, then green, then blue, each row by row.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elman.errors import RunError, diagnostic
from elman.files import read_file
from elman.train.tasks.sequences.readers import load_npz
from elman.train.tasks.sequences.source import unreadable

TRAIN, TEST, INNER = "data_batch_", "test_batch", "cifar-10-batches-py"
BATCHES = "a folder with data_batch_1 … data_batch_5 and test_batch, or an .npz"


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
        raise unreadable(place, f"no {TRAIN}1", BATCHES)
    return np.concatenate([read_batch(path) for path in files]), read_batch(place / TEST)


def read_batch(path: Path) -> np.ndarray:
    """Read one file, uint8 [N, 32, 32, 3]."""
    try:
        content = ArraysOnly(io.BytesIO(read_file(path)), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises anything
        raise unreadable(path, f"{type(error).__name__}: {error}", BATCHES) from error
    content = content if isinstance(content, dict) else {}
    data = content.get(b"data", content.get("data"))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3072,):
        raise unreadable(path, "data is not uint8 [N, 3072]", BATCHES)
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


HINT = "an .npz needs x_train, uint8 [N, H, W] or [N, H, W, 3], and x_test"
LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue: ITU-R BT.601
PHOTOGRAPH = "grace_hopper.jpg"  # of matplotlib's sample data; 600 x 512
SHRINK = 3  # so that a part shows as much as a small photograph does
SIDE, STRIDE, HELD_OUT = 32, 2, 48  # of the parts; columns on the left that are held out


@dataclass(frozen=True)
class Images:
    """Grey images: a name for people, and two halves [N, H, W], uint8."""

    name: str
    train: np.ndarray
    test: np.ndarray

    @property
    def digest(self) -> str:
        """Hash of all pixels."""
        hashed = hashlib.sha256()
        for half in (self.train, self.test):
            hashed.update(repr(half.shape).encode())
            hashed.update(np.ascontiguousarray(half).data)
        return hashed.hexdigest()


def find_images(data: str | None) -> Images:
    """Read what a user named, or parts of a photograph. Raises RunError: there are no images in
    it."""
    if data is None:
        return photograph()
    path = Path(data).expanduser()
    if not path.exists():
        raise RunError("the data file or folder does not exist", path=path)
    if path.is_file():
        return of_npz(path)
    if is_cifar(path):
        return Images(str(path), *map(grey, read_cifar(path)))
    files = sorted(path.glob("*.npz"))
    if len(files) != 1:
        found = ", ".join(file.name for file in files[:5]) or "none"
        details = [("path", str(path)), ("wanted", "data_batch_1 … test_batch, or one .npz")]
        raise RunError(diagnostic("the folder holds no images", [*details, ("found", found)]))
    return of_npz(files[0])


def of_npz(path: Path) -> Images:
    """Read images by name. Raises RunError: with the array's name, if one is missing or holds no
    images."""
    arrays = load_npz(path, HINT)
    halves = []
    for name in ("x_train", "x_test"):
        if name not in arrays:
            raise unreadable(path, f"no {name}: {', '.join(arrays) or 'no array at all'}", HINT)
        held = arrays[name]
        if held.dtype != np.uint8:
            raise unreadable(path, f"{name} holds {held.dtype}, not uint8", HINT)
        colours = held.shape[3:] in ((), (1,), (3,))
        if held.ndim < 3 or not colours or min(held.shape[:1]) < 1 or min(held.shape[1:3]) < 2:
            raise unreadable(path, f"{name} is of shape {list(held.shape)}", HINT)
        halves.append(grey(held))
    if halves[0].shape[1:] != halves[1].shape[1:]:
        sizes = " and ".join(str(list(half.shape[1:])) for half in halves)
        raise unreadable(path, f"images of x_train and x_test differ in size: {sizes}", HINT)
    return Images(str(path), *halves)


def grey(images: np.ndarray) -> np.ndarray:
    """Return the luminance, uint8 [N, H, W], of images [N, H, W], [N, H, W, 1] or [N, H, W, 3]."""
    if images.ndim == 3:
        return images
    if images.shape[3] == 1:
        return images[..., 0]
    weights = np.array(LUMINANCE, np.float32)
    return np.rint(images.astype(np.float32) @ weights).astype(np.uint8)


def photograph() -> Images:
    """Cut the photograph that comes with matplotlib, made smaller, into parts of 32 x 32. Raises
    RunError: this matplotlib has come without it."""
    import matplotlib as mpl  # a tenth of the start of any training
    from matplotlib.image import imread

    path = Path(mpl.get_data_path()) / "sample_data" / PHOTOGRAPH
    try:
        whole = grey(imread(path)[None])[0].astype(np.float32)
    except (OSError, SyntaxError) as error:
        hint = "elman train rotate --data FILE.npz"
        raise unreadable(path, error, hint) from error
    height, width = (size // SHRINK for size in whole.shape)
    blocks = whole[: height * SHRINK, : width * SHRINK].reshape(height, SHRINK, width, SHRINK)
    small = np.rint(blocks.mean((1, 3))).astype(np.uint8)
    train, test = (parts(piece) for piece in (small[:, HELD_OUT:], small[:, :HELD_OUT]))
    return Images("a photograph of matplotlib's sample data, in parts", train, test)


def parts(picture: np.ndarray) -> np.ndarray:
    """Cut a picture [H, W] into overlapping parts [N, SIDE, SIDE]."""
    windows = np.lib.stride_tricks.sliding_window_view(picture, (SIDE, SIDE))
    return windows[::STRIDE, ::STRIDE].reshape(-1, SIDE, SIDE).copy()
