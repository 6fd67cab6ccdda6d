"""What is remembered between processes: one small JSON file per key, written atomically.

One file per key needs no lock: writers replace whole files, so a reader sees an old one or a new
one. Whatever cannot be read, parsed or believed counts as not remembered; whatever cannot be
written is not an error, because the next process can measure again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from elman.errors import warn_once
from elman.files import read_file, write_atomically
from elman.folders import cache_folder, open_to_others, private_folder

FORMAT = 1
_LARGEST = 1 << 20  # (bytes) no honest entry is larger

Key = dict[str, Any]


def _path(key: Key) -> Path:
    text = json.dumps(key, sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:32]
    return cache_folder() / "tuning" / f"{name}.json"


def _usable(folder: Path) -> bool:
    """Whether records can be kept in a folder; what others could have written is not used, which is
    said once."""
    if private_folder(folder):
        return True
    with contextlib.suppress(OSError):
        if open_to_others(folder):
            text = f"elman uses no records of benchmarks in {folder}: others can write to it"
            warn_once(f"{text}. Each process measures anew; chmod 700 it, or set ELMAN_CACHE.")
    return False


def recall(key: Key) -> dict[str, Any] | None:
    """The value stored under a key, or None; the caller checks what is in it."""
    try:
        path = _path(key)
        if not _usable(path.parent):
            return None
        entry = json.loads(read_file(path, _LARGEST))
    except (OSError, ValueError, RuntimeError):  # RuntimeError: no home, or JSON nested too deeply
        return None
    if not isinstance(entry, dict) or entry.get("format") != FORMAT or entry.get("key") != key:
        return None
    value = entry.get("value")
    return value if isinstance(value, dict) else None


def remember(key: Key, value: dict[str, Any]) -> None:
    """Store a JSON-able value under a key; silently nothing on a folder that cannot be written."""
    try:
        path = _path(key)
    except RuntimeError:  # no home folder
        return
    if not _usable(path.parent):
        return
    text = json.dumps({"format": FORMAT, "key": key, "value": value}, sort_keys=True)
    with contextlib.suppress(OSError):
        write_atomically(path, text.encode(), private=True)
