"""Cache of compiled kernels: written atomically, each file with its hash appended."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

from elman.errors import BuildError
from elman.files import INCOMPLETE, open_file, read_file, write_atomically
from elman.folders import cache_folder, private_folder

_PATIENCE = 120.0  # (s) most time to wait for another process that compiles the same kernel
_LEFT = 1800.0  # (s) age of a build's folder that a killed process must have left
_ROOM = 4 << 20  # (bytes) more than a build writes
HASH = 32  # (bytes) of the hash at the end of each file
BUILD = "build-"  # beginning of the name of a build's folder


@cache
def _own_folder() -> Path:
    """A folder of this process, for when the cache cannot be used; removed at exit. Raises
    BuildError if none can be made."""
    try:
        folder, owner = Path(tempfile.mkdtemp(prefix="elman-")), os.getpid()
    except OSError as error:
        raise BuildError(f"there is no folder for compiled kernels: {error}") from error

    def remove() -> None:
        if os.getpid() == owner:  # not the child of a fork
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


@cache
def _warn_uncached(folder: str, why: str = "not writable, or open to others") -> None:
    warnings.warn(
        f"elman cannot keep compiled kernels in {folder} ({why}):"
        " each process compiles its own. Set ELMAN_CACHE to a private folder.",
        RuntimeWarning,
        stacklevel=2,
    )


def kernel_folder() -> Path:
    """The cache of compiled kernels, or this process's own folder if the cache cannot be used."""
    try:
        folder = cache_folder() / "kernels"
        usable = private_folder(folder) and os.access(folder, os.W_OK | os.X_OK)
    except RuntimeError:
        folder, usable = Path("~/.cache/elman/kernels"), False
    if usable:
        return folder
    _warn_uncached(str(folder))
    return _own_folder()


def folder_instead(folder: Path, error: OSError) -> Path:
    """This process's own folder, instead of one that cannot be written: its disk is full, or it was
    removed meanwhile.

    Raises:
        BuildError: ``folder`` is this process's own, or none can be made.
    """
    if folder == _own_folder():
        raise BuildError(f"cannot keep a kernel in {folder}: {error}") from error
    _warn_uncached(str(folder), error.strerror or str(error))
    return _own_folder()


def check_room(folder: Path) -> None:
    """Raise OSError if a folder has no room for the files of a build."""
    path = folder / "room"
    path.write_bytes(bytes(_ROOM))
    path.unlink()


def stored(path: Path) -> bytes | None:
    """A file of the cache if its trailing hash is right, else None."""
    try:
        data = read_file(path)
    except OSError:
        return None
    if len(data) < 64 or hashlib.sha256(data[:-HASH]).digest() != data[-HASH:]:
        return None
    return data


def remove_leftovers(folder: Path) -> None:
    """Remove the build folders and incomplete files of killed processes."""
    for path in (*folder.glob(f"{BUILD}*"), *folder.glob(f"{INCOMPLETE}*")):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _LEFT:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


def store(path: Path, data: bytes) -> None:
    """Write a library and its hash, whole or not at all."""
    content = data + hashlib.sha256(data).digest()
    write_atomically(path, content, durable=True, private=True)


@contextlib.contextmanager
def alone(path: Path):
    """Let one process at a time compile a kernel; without the lock if locks fail or take too long:
    files are written atomically, so that costs only time."""
    lock = FileLock(str(path.with_suffix(".lock")))
    try:
        lock.acquire(timeout=_PATIENCE)
    except (Timeout, OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()


def fingerprint(path: Path) -> str:
    """The hash at the end of a library that ``build`` made."""
    with open_file(path) as file:
        file.seek(-HASH, os.SEEK_END)
        return file.read().hex()
