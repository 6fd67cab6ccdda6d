"""Files that others may touch: opened where they are regular files, and without waiting; written so
that nobody sees half of one, nor half a folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

INCOMPLETE = ".incomplete-"  # how the name of what is not whole yet begins
IRREGULAR = "it is not a regular file"
_FLAGS = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")  # of which no system has all


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading.

    A pipe would be waited for, a device would be used: neither is opened, nor a socket or a folder.

    Raises:
        OSError: it is something else, or cannot be opened.
    """
    _check(os.stat(path), path)
    number = os.open(path, os.O_RDONLY | sum(getattr(os, name, 0) for name in _FLAGS))
    try:
        _check(os.fstat(number), path)  # it may be another one by now
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def read_file(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Read a regular file.

    Args:
        most: bytes that it may have.

    Raises:
        OSError: as :func:`open_file`; it has more, or more than memory takes.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes; at most {most} are read", str(path))
        try:
            return file.read()
        except (MemoryError, OverflowError) as error:
            text = f"it has {size} bytes, which memory does not take"
            raise OSError(errno.EFBIG, text, str(path)) from error


def missing(path: Path, error: OSError) -> bool:
    """Whether an error of reading says that there is nothing: not even a link to nothing."""
    return isinstance(error, FileNotFoundError) and not os.path.islink(path)


def write_atomically(path: Path, data: bytes, durable: bool = False, private: bool = False) -> None:
    """Put a file in the place of an older one, whole or not at all.

    Args:
        durable: whether to wait until the disk has it, so that it is there after a loss of power.
        private: whether nobody else may read it.

    Raises:
        OSError: it cannot be written, as on a full disk; the older one stays.
    """
    temporary = temporary_path(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        os.close(os.open(temporary, flags, 0o600 if private else 0o666))
        (write_through if durable else Path.write_bytes)(temporary, data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        sync_folder(path.parent)


def temporary_path(path: Path) -> Path:
    """A name beside a path that no process takes twice, on this machine or on another one."""
    return path.with_name(f"{INCOMPLETE}{path.name}-{secrets.token_hex(8)}")


def write_through(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the disk has a folder's list of names."""
    if os.name == "nt":
        return  # Windows cannot open folders and keeps their order by itself
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _check(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, IRREGULAR, str(path))


def write_folder(path: Path, contents: Mapping[str, bytes]) -> None:
    """Make a new folder with these files in one step; an older one of that name gives way. Raises
    OSError: it cannot be written, as on a full disk; nothing of it stays."""
    temporary = temporary_path(path)
    try:
        temporary.mkdir(parents=True)
        for name, content in contents.items():
            write_through(temporary / name, content)
        sync_folder(temporary)
        if path.exists():
            remove_folder(path)
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder so that no half-removed one is ever seen under its name."""
    temporary = temporary_path(path)
    os.rename(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half-written below a folder."""
    for path in folder.glob(f"{INCOMPLETE}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
