"""Run folders: where a run keeps its configuration, checkpoints, metrics and result."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from elman.errors import RunError, diagnostic
from elman.files import write_atomically
from elman.train.stored import read_object


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
        """Write config, facts or result.

        Raises:
            RunError: if the disk does not take it.
        """
        path = self.path / f"{name}.json"
        try:
            text = json.dumps(content, indent=1) + "\n"
            write_atomically(path, text.encode(), durable=True)
        except OSError as error:
            details = [("path", str(path)), ("error", str(error.strerror))]
            raise RunError(diagnostic("a file of the run cannot be written", details)) from error

    def read(self, name: str) -> dict[str, Any] | None:
        """Read config, facts or result as JSON has it; None if it is not there yet.

        Raises:
            DamageError: if the file cannot be read or is no JSON object.
        """
        return read_object(self.path / f"{name}.json")

    def lock(self) -> FileLock:
        """Take the folder for this process.

        Raises:
            RunError: if another process trains in it, or it cannot be taken.
        """
        path = self.path / ".lock"
        lock = FileLock(path, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            details = [("path", str(self.path))]
            raise RunError(
                diagnostic("another process is training in this run", details)
            ) from error
        except OSError as error:
            details = [("path", str(path)), ("error", str(error.strerror))]
            raise RunError(diagnostic("the lock of the run cannot be taken", details)) from error
        return lock


def create_run(root: Path, task: str) -> RunFolder:
    """Make a new folder `<date>_<time>-<task>` below `root`.

    Raises:
        RunError: if it cannot be made.
    """
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
            details = [("path", str(path)), ("error", str(error.strerror))]
            hint = "elman train --out FOLDER"
            raise RunError(diagnostic("the run folder cannot be made", details, hint)) from error
        return RunFolder(path)
    raise RunError(diagnostic("the run folder cannot be made", [("path", str(root / name))]))


def open_run(path: Path) -> RunFolder:
    """Open an existing run folder.

    Raises:
        RunError: if it is none.
    """
    if not is_run(path):
        missing = "no config.json in it" if os.path.isdir(path) else "no such folder"
        hint = "elman runs"
        if inside := list_runs(path):
            missing, hint = "run folders in it", str(inside[-1].path)  # the newest
        details = [("path", str(path)), ("found", missing)]
        raise RunError(diagnostic("this is not a run folder", details, hint))
    return RunFolder(path)


def list_runs(root: Path) -> list[RunFolder]:
    """List the run folders below a folder, oldest first.

    Raises:
        RunError: if the folder cannot be read.
    """
    try:
        names = sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        details = [("path", str(root)), ("error", str(error.strerror))]
        raise RunError(diagnostic("the folder of the runs cannot be read", details)) from error
    return [RunFolder(root / name) for name in names if is_run(root / name)]


def is_run(path: Path) -> bool:
    """Whether a run wrote this folder; one that cannot be looked into might be such."""
    try:
        held = set(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return "config.json" in held or {"facts.json", "checkpoints"} <= held
