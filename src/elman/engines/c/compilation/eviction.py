"""LRU eviction of compiled kernels from the cache.

No lock is needed. A library that a process has loaded stays mapped when its file is removed; one
that is removed between its check and its loading is built again, and a file that has just been
built is left to the process that is about to load it. What a process uses itself it never removes.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from elman.errors import EngineError

VARIABLE = "ELMAN_CACHE_SIZE"
DEFAULT = "1 GiB"
KEPT = (".so", ".o")  # kernels, and the parts that they are linked with
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", re.IGNORECASE)
_UNITS = " KMGT"
_LEFT_OVER = 0.9  # of the limit: so that not every new kernel has to make room
_DAY = 86400.0  # (s) between two notes that a file was used
_GRACE = 60.0  # (s) from writing a file to loading it
_used: set[Path] = set()  # by this process


def limit_text() -> str:
    """ELMAN_CACHE_SIZE, or what holds without it."""
    return os.environ.get(VARIABLE, "").strip() or DEFAULT


def limit_bytes() -> int:
    """How much may be kept (bytes).

    Raises:
        EngineError: ELMAN_CACHE_SIZE is not a size.
    """
    text = limit_text()
    match = _SIZE.fullmatch(text)
    if match is None:
        raise EngineError(
            f"{VARIABLE}={text!r} is not a size; write a number and a unit: {VARIABLE}='{DEFAULT}'"
        )
    number, unit, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** _UNITS.index((unit or " ").upper()))


def note_use(*paths: Path) -> None:
    """Mark files as used by this process; their timestamps are updated at most once a day."""
    for path in paths:
        _used.add(path)
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _DAY:
                os.utime(path)


def make_room(folder: Path, limit: int) -> None:
    """Remove what was used longest ago from a folder that holds more than the limit (bytes)."""
    files: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process has just removed it
                if entry.name.endswith(KEPT) and entry.is_file(follow_symlinks=False):
                    facts = entry.stat(follow_symlinks=False)
                    files.append((facts.st_mtime, facts.st_size, Path(entry.path)))
    total = sum(size for _, size, _ in files)
    if total <= limit:
        return
    youngest = time.time() - _GRACE
    for last_use, size, path in sorted(files):
        if total <= limit * _LEFT_OVER:
            return
        if path in _used or last_use > youngest:
            continue
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
            total -= size
