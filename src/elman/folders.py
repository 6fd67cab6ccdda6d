"""Where elman keeps what it can make again: a folder that only the user can enter."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "ELMAN_CACHE"


def cache_folder() -> Path:
    """ELMAN_CACHE, else the platform's cache folder. Raises RuntimeError where there is no home."""
    path = os.environ.get(VARIABLE)
    if path:
        return Path(path).expanduser()
    try:
        import platformdirs
    except ImportError:
        return Path("~/.cache/elman").expanduser()
    return Path(platformdirs.user_cache_dir("elman", appauthor=False))


def private_folder(folder: Path) -> bool:
    """Make a folder that only the user can enter; False if that is impossible, or others may
    write."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return not is_shared(folder)
    except OSError:
        return False


def is_shared(folder: Path) -> bool:
    """Whether others may write to a folder. Raises OSError if that cannot be told."""
    if sys.platform == "win32":
        return False
    facts = folder.stat()
    return facts.st_uid != os.getuid() or bool(facts.st_mode & 0o022)
