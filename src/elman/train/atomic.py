"""Folders that appear complete or not at all, whenever the machine stops."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from elman import files


def write_folder(path: Path, contents: Mapping[str, bytes]) -> None:
    """Make a new folder with these files in one step; an older one of that name gives way.

    Raises:
        OSError: if it cannot be written, as on a full disk; nothing of it stays.
    """
    temporary = files.temporary_path(path)
    try:
        temporary.mkdir(parents=True)
        for name, content in contents.items():
            files.write_through(temporary / name, content)
        files.sync_folder(temporary)
        if path.exists():
            remove_folder(path)
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    files.sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder so that no half-removed one is ever seen under its name."""
    temporary = files.temporary_path(path)
    os.rename(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half-written below a folder."""
    for path in folder.glob(f"{files.INCOMPLETE}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
