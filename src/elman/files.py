"""Files that others may have touched: opened where they are regular files, and without waiting."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

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


def _check(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, IRREGULAR, str(path))
