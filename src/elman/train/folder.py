"""Run folders: where a run keeps its configuration, checkpoints, metrics and result."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from elman.errors import RunError, rows
from elman.train.atomic import write_file
from elman.train.config import Config
from elman.train.tasks import read_config


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
            write_file(path, (json.dumps(content, indent=1) + "\n").encode())
        except OSError as error:
            details = [("path", str(path)), ("error", str(error.strerror))]
            raise RunError(rows("a file of the run cannot be written", details)) from error

    def read(self, name: str) -> dict[str, Any]:
        """Read config, facts or result; empty if it is not there yet.

        Raises:
            RunError: if the file is damaged.
        """
        path = self.path / f"{name}.json"
        if not path.exists():
            return {}
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            details = [("path", str(path)), ("error", str(error))]
            raise RunError(rows("a file of the run is damaged", details)) from error
        if not isinstance(content, dict):
            raise RunError(rows("a file of the run is damaged", [("path", str(path))]))
        return content

    def config(self) -> Config:
        """Read the configuration."""
        return read_config(self.read("config"), self.path / "config.json")

    def lock(self) -> FileLock:
        """Take the folder for this process.

        Raises:
            RunError: if another process trains in it.
        """
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            details = [("path", str(self.path))]
            raise RunError(rows("another process is training in this run", details)) from error
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
            raise RunError(rows("the run folder cannot be made", details, hint)) from error
        return RunFolder(path)
    raise RunError(rows("the run folder cannot be made", [("path", str(root / name))]))


def open_run(path: Path) -> RunFolder:
    """Open an existing run folder.

    Raises:
        RunError: if it is none.
    """
    if not (path / "config.json").is_file():
        missing = "no config.json in it" if path.is_dir() else "no such folder"
        details = [("path", str(path)), ("found", missing)]
        raise RunError(rows("this is no run folder", details, hint="elman runs"))
    return RunFolder(path)


def list_runs(root: Path) -> list[RunFolder]:
    """List the run folders below a folder, oldest first."""
    return [RunFolder(path.parent) for path in sorted(root.glob("*/config.json"))]
