"""Run folders: configuration, checkpoints, metrics and result of a run; and the permission to run
the code that a folder names.

A run folder is data, and may be anybody's; but its configuration can name a Python file with the
formula of its cell. That file is run where the call names it or trusts the run, or where the run is
known: this user began it on this machine with that file. Of such runs the user's cache has a
record, under the hash of the files that a run writes once, when it begins. So a folder may be
renamed, moved and copied; one whose configuration was changed, or whose cell's file has changed
since, is not known.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from elman import cells
from elman.errors import InputError, RunError, spelled
from elman.files import read_file, write_atomically
from elman.folders import cache_folder, private_folder
from elman.train.loop.config import Config
from elman.train.run.stored import read_object


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """The table of losses and speeds."""
        return self.path / "metrics.csv"

    @property
    def report(self) -> Path:
        """The page for people."""
        return self.path / "report.html"

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write config, facts or result. Raises RunError: the disk does not take it."""
        path = self.path / f"{name}.json"
        try:
            text = json.dumps(content, indent=1) + "\n"
            write_atomically(path, text.encode(), durable=True)
        except OSError as error:
            raise RunError(
                "a file of the run cannot be written", path=path, error=error.strerror
            ) from error

    def read(self, name: str) -> dict[str, Any] | None:
        """Read config, facts or result as JSON has it; None if it is not there yet. Raises
        DamageError: the file cannot be read or is no JSON object."""
        return read_object(self.path / f"{name}.json")

    def lock(self) -> FileLock:
        """Take the folder for this process. Raises RunError: another process trains in it, or it
        cannot be taken."""
        path = self.path / ".lock"
        lock = FileLock(path, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise RunError("another process is training in this run", path=self.path) from error
        except OSError as error:
            raise RunError(
                "the lock of the run cannot be taken", path=path, error=error.strerror
            ) from error
        return lock


def create_run(root: Path, task: str) -> RunFolder:
    """Make a new folder `<date>_<time>-<task>` below `root`. Raises RunError: it cannot be made."""
    name = time.strftime("%Y-%m-%d_%H-%M-%S") + f"-{task}"
    for number in range(1, 1000):
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if root.is_file():
                break
            continue
        except OSError as error:
            hint = "elman train --out FOLDER"
            raise RunError(
                "the run folder cannot be made", hint, path=path, error=error.strerror
            ) from error
        return RunFolder(path)
    raise RunError("the run folder cannot be made", path=root / name)


def open_run(path: Path) -> RunFolder:
    """Open an existing run folder. Raises RunError: it is none."""
    if not is_run(path):
        missing = "no config.json in it" if os.path.isdir(path) else "no such folder"
        hint = "elman runs"
        if inside := list_runs(path):
            missing, hint = "run folders in it", str(inside[-1].path)  # the newest
        raise RunError("this is not a run folder", hint, path=path, found=missing)
    return RunFolder(path)


def list_runs(root: Path) -> list[RunFolder]:
    """List the run folders below a folder, oldest first. Raises RunError: the folder cannot be
    read."""
    try:
        names = sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunError(
            "the folder of the runs cannot be read", path=root, error=error.strerror
        ) from error
    return [RunFolder(root / name) for name in names if is_run(root / name)]


def is_run(path: Path) -> bool:
    """Whether a run wrote this folder; one that cannot be looked into might be such."""
    try:
        names = set(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return "config.json" in names or {"facts.json", "checkpoints"} <= names


IDENTITY = ("config.json", "facts.json", "model.json")  # written once, when a run begins
INNER = ("checkpoints", "tensorboard")  # folders of a run that a process writes into
_MOST = 1 << 20  # (bytes) of a record
AnyConfig = TypeVar("AnyConfig", bound=Config)


def note_run(folder: RunFolder, config: Config) -> None:
    """Keep a record of a run that begins here, if its cell is in a file; nothing where the cache
    takes none."""
    if ":" not in config.cell:
        return
    try:
        path = _record(folder)
        if private_folder(path.parent):
            content = {"cell": config.cell, "sha256": _hash(_file(config.cell))}
            write_atomically(path, json.dumps(content).encode(), durable=True)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return


def permit_cell(
    folder: RunFolder, config: AnyConfig, cell: str | None = None, trust: bool = False
) -> AnyConfig:
    """The configuration of a run, with a cell whose file may be run.

    Args:
        cell: file.py:cell, as the call names it.
        trust: whether the call trusts the run.

    Raises:
        RunError: the cell is in a file of which nobody here has said that it may be run.
        InputError: the call names a cell, and that of the run is in no file.
    """
    if ":" not in config.cell and config.cell not in {formula.name for formula in cells.ALL}:
        raise RunError(
            "the run is damaged", path=folder.path, found=f"config.json: cell: {config.cell!r}"
        )
    if cell is not None:
        if ":" not in config.cell:
            text = "the cell of the run is in no file"
            raise InputError(
                text, spelled("leave cell out", "no --cell"), cell=config.cell, path=folder.path
            )
        if ":" not in cell:
            text = f"cell names no file: {cell!r}"
            raise InputError(text, spelled('cell="mine.py:mine"', "mine.py:mine"))
        return replace(config, cell=cell)
    if ":" in config.cell and not trust and (reason := _reason_unknown(folder, config.cell)):
        name = config.cell.rpartition(":")[2]
        hint = spelled(
            f'cell="FILE.py:{name}", or trust=True if the file may run',
            f"--cell FILE.py:{name}, or --trust if the file may run",
        )
        text = "the cell of the run is in a file, which is not run unasked"
        raise RunError(text, hint, path=folder.path, cell=config.cell, found=reason)
    return config


def check_inner(folder: RunFolder, trust: bool = False) -> None:
    """Refuse to write where links of a run folder lead. Raises RunError: there are some, and the
    call does not trust the run."""
    for name in () if trust else INNER:
        inner = folder.path / name
        if inner.is_symlink():
            hint = spelled("trust=True if it may write there", "--trust if it may write there")
            raise RunError(
                "a folder of the run is elsewhere",
                hint,
                path=inner,
                found=f"a link to {inner.readlink()}",
            )


def _reason_unknown(folder: RunFolder, cell: str) -> str:
    """The reason why a run, with its cell's file as it is, is not known as this user's; or
    empty."""
    try:
        path = _record(folder)
        if not private_folder(path.parent):
            return "records of runs lie where others can write"
        content = json.loads(read_file(path, _MOST))
        cell_then, hash_then = content["cell"], content["sha256"]
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        return "no record that the run was begun here"
    try:
        hash_now = _hash(_file(cell))
    except OSError as error:
        return f"the file cannot be read: {error.strerror}"
    if (cell_then, hash_then) != (cell, hash_now):
        return "the file has changed since the run began"
    return ""


def _record(folder: RunFolder) -> Path:
    """Path of the record of a run, which may not exist."""
    hashes = [_hash(folder.path / name) for name in IDENTITY]
    return cache_folder() / "runs" / f"{hashlib.sha256(' '.join(hashes).encode()).hexdigest()}.json"


def _hash(path: Path) -> str:
    return hashlib.sha256(read_file(path)).hexdigest()


def _file(cell: str) -> Path:
    return Path(cell.rpartition(":")[0]).expanduser()
