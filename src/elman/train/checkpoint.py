"""Checkpoints on disk: tensors as safetensors, everything else as JSON, never pickle.

A checkpoint is a folder that appears complete under its name: `tensors.safetensors`,
`checkpoint.json` (which holds the hashes of all three) and a copy of `metrics.csv`.
The last two are kept, so that one whose bytes were damaged later is no lost run. What did best in
validation lies beside them (`best.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from elman.errors import RunError, diagnostic
from elman.files import read_file
from elman.train.atomic import remove_folder, remove_leftovers, write_folder
from elman.train.stored import Count, DamageError, filled, read_object
from elman.train.tensors import decode_tensors, encode_tensors

FORMAT = 1
KEPT = 2
NAME = "step"
TENSORS, FACTS, METRICS = "tensors.safetensors", "checkpoint.json", "metrics.csv"


@dataclass(frozen=True)
class Checkpoint:
    """Everything a run needs to go on.

    Attributes:
        step: number of training steps done.
        tensors: weights, optimizer, carried state, random numbers, by name.
        facts: the rest, as JSON can hold it.
        metrics: the text of metrics.csv up to this step.
    """

    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    metrics: str


@dataclass(frozen=True)
class Body:
    """What checkpoint.json says of a checkpoint."""

    step: Count
    facts: dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """A checkpoint that the disk did not take.

    Attributes:
        best: whether it is the one that did best in validation.
    """

    step: int
    error: OSError
    best: bool


class Writer:
    """Writes the checkpoints of a run in a thread of its own, one at a time.

    Args:
        folder: where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._step, self._best = 0, False
        self._pending: Future[Path] | None = None

    def begin(
        self, checkpoint: Checkpoint, save_best: Callable[[Path, Checkpoint], Path] | None = None
    ) -> Failure | None:
        """Write a checkpoint once the one before is written; return what became of that one.

        Args:
            checkpoint: to be written.
            save_best: what writes it, if it is the one that did best in validation.
        """
        earlier = self.settled()
        self._step, self._best = checkpoint.step, save_best is not None
        self._pending = self._pool.submit(save_best or save, self.folder, checkpoint)
        return earlier

    def settled(self) -> Failure | None:
        """Wait for the last one, and return what became of it, once."""
        pending, self._pending = self._pending, None
        try:
            if pending is not None:
                pending.result()
        except OSError as error:
            return Failure(self._step, error, self._best)
        return None

    def close(self) -> None:
        """Wait for what is being written."""
        self._pool.shutdown()


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint below `folder` and remove all but the last two.

    Raises:
        OSError: if it cannot be written, as on a full disk; the older ones stay.
    """
    path = written(folder, NAME, checkpoint)
    for old in listed(folder)[:-KEPT]:
        remove_folder(old)
    return path


def written(folder: Path, name: str, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint below `folder`, named by its step.

    Raises:
        OSError: if it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {TENSORS: encode_tensors(checkpoint.tensors), METRICS: checkpoint.metrics.encode()}
    body = {"format": FORMAT, "step": checkpoint.step, "facts": checkpoint.facts}
    hashes = {name: sha256(content) for name, content in files.items()} | {"body": hashed(body)}
    files[FACTS] = json.dumps(body | {"sha256": hashes}, indent=1).encode()
    path = folder / f"{name}-{checkpoint.step:09d}"
    write_folder(path, files)
    return path


def listed(folder: Path) -> list[Path]:
    """List the checkpoints below a folder, oldest first."""
    return sorted(path for path in folder.glob(f"{NAME}-*") if path.is_dir())


def load_latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Remove what was half written and read the newest checkpoint that is whole: see `newest`."""
    remove_leftovers(folder)
    return newest(folder)


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Read the newest checkpoint that is whole; another process may be writing one.

    Returns:
        checkpoint: None if there is none at all.
        complaints: what is wrong with newer ones that were passed over.

    Raises:
        RunError: if there are checkpoints and none is whole.
    """
    complaints: list[str] = []
    for path in reversed(listed(folder)):
        try:
            return read(path), complaints
        except RunError as error:
            complaints.append(str(error))
    if complaints:
        details = [("bad", line.replace("\n", " ")) for line in complaints]
        raise RunError(diagnostic("no checkpoint of the run is whole", details))
    return None, complaints


def read(path: Path) -> Checkpoint:
    """Read one checkpoint and check every byte of it.

    Raises:
        RunError: if a file is missing, cut short, or changed.
    """
    try:
        stored = read_object(path / FACTS)
        if stored is None:
            raise damaged(path, FACTS, "missing")
        hashes = stored.pop("sha256")
        if stored["format"] != FORMAT:
            raise damaged(path, FACTS, f"format {stored['format']}; this elman reads {FORMAT}")
        if hashes["body"] != hashed(stored):
            raise damaged(path, FACTS, "changed")
        body = filled(Body, stored)
        content = {name: read_file(path / name) for name in (TENSORS, METRICS)}
    except DamageError as error:
        raise damaged(path, FACTS, str(error)) from error
    except OSError as error:
        raise damaged(path, Path(error.filename or path).name, str(error.strerror)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(path, FACTS, f"cut short or changed ({error})") from error
    for name, held in content.items():
        if sha256(held) != hashes.get(name):
            raise damaged(path, name, f"cut short or changed ({len(held)} bytes)")
    try:
        tensors = decode_tensors(content[TENSORS])
    except ValueError as error:
        raise damaged(path, TENSORS, str(error)) from error
    try:
        return Checkpoint(body.step, tensors, body.facts, content[METRICS].decode())
    except UnicodeDecodeError as error:
        raise damaged(path, METRICS, f"it is not text: {error.reason}") from error


def damaged(path: Path, name: str, found: str) -> RunError:
    """Build the error for a checkpoint that cannot be used."""
    details = [("path", str(path)), ("file", name), ("found", found)]
    return RunError(diagnostic("a checkpoint is damaged", details))


def sha256(content: bytes) -> str:
    """Hash a file's content."""
    return hashlib.sha256(content).hexdigest()


def hashed(body: dict[str, Any]) -> str:
    """Hash what JSON says, whatever its layout."""
    return sha256(json.dumps(body, sort_keys=True).encode())
