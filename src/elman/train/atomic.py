"""Files and folders that appear complete or not at all, whenever the machine stops."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

TEMPORARY = ".incomplete-"


def write_file(path: Path, content: bytes) -> None:
    """Replace a file's content in one step.

    Raises:
        OSError: if it cannot be written, as on a full disk; the old content stays.
    """
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        write_through(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make a new folder with these files in one step; an older one of that name gives way.

    Raises:
        OSError: if it cannot be written, as on a full disk; nothing of it stays.
    """
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        temporary.mkdir(parents=True)
        for name, content in files.items():
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
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-old-{path.name}")
    os.rename(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half-written below a folder."""
    for path in folder.glob(f"{TEMPORARY}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def write_through(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(content)
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
