"""LRU eviction of compiled kernels from the cache.

No lock is needed. A library that a process has loaded stays mapped when its file is removed; a
library that is removed between its check and its loading is built again; and a file younger than a
minute is kept for the process that is about to load it. A process never removes files that it uses.
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
KEPT = (".so", ".o")  # kernels, and the units that they are linked with
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", re.IGNORECASE)
_UNITS = " KMGT"
_LEFT_OVER = 0.9  # of the limit after an eviction, so that not every new kernel evicts others
_DAY = 86400.0  # (s) between two updates of a file's timestamp
_GRACE = 60.0  # (s) most time from writing a file to loading it
_used: set[Path] = set()  # files that this process uses


def limit_text() -> str:
    """ELMAN_CACHE_SIZE, or its default."""
    return os.environ.get(VARIABLE, "").strip() or DEFAULT


def limit_bytes() -> int:
    """Largest size of the cache (bytes).

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
    """Remove the least recently used files from a folder that exceeds the limit (bytes)."""
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
