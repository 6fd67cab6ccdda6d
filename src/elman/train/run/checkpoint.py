"""Checkpoints on disk: tensors as safetensors, everything else as JSON, never pickle.

A checkpoint is a folder that appears complete under its name: `tensors.safetensors`,
`checkpoint.json` (which holds the hashes of all three) and a copy of `metrics.csv`.
The last two are kept, so that one whose bytes were damaged later is no lost run. The weights that
did best in validation lie beside them, in a folder of the same files, from which a run reads its
best, also after a kill.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from elman.errors import RunError, diagnostic
from elman.extras import require
from elman.files import read_file, remove_folder, remove_leftovers, write_folder
from elman.train.loop.objective import Score
from elman.train.run.stored import Count, DamageError, convert, decode, read_object

PURPOSE = "a file of tensors"


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Write tensors as a safetensors file has them. Raises MissingPackageError: safetensors is not
    installed."""
    return require("safetensors.torch", PURPOSE).save(dict(tensors))


def decode_tensors(content: bytes) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file, each at an address of its own. Raises ValueError: it
    is none; MissingPackageError: safetensors is not installed."""
    library: Any = require("safetensors.torch", PURPOSE)
    broken = require("safetensors", PURPOSE).SafetensorError
    try:  # copies, because a tensor lies in a safetensors file at any address, not an aligned one
        return {name: value.clone() for name, value in library.load(content).items()}
    except (broken, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(str(error).partition("\n")[0]) from error


FORMAT = 1
MOST_CHECKPOINTS = 2
NAME, BEST = "step", "best"
TENSORS, FACTS, METRICS = "tensors.safetensors", "checkpoint.json", "metrics.csv"


@dataclass(frozen=True)
class Checkpoint:
    """State from which a run continues.

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

    def begin(self, checkpoint: Checkpoint, best: bool = False) -> Failure | None:
        """Write a checkpoint, or the one that did best in validation, once the one before is
        written; return what became of that one."""
        earlier = self.wait()
        self._step, self._best = checkpoint.step, best
        self._pending = self._pool.submit(save_best if best else save, self.folder, checkpoint)
        return earlier

    def wait(self) -> Failure | None:
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
    """Write a checkpoint below `folder` and remove all but the last two. Raises OSError: it cannot
    be written, as on a full disk; the older ones stay."""
    path = write_checkpoint(folder, NAME, checkpoint)
    for old in list_checkpoints(folder)[:-MOST_CHECKPOINTS]:
        remove_folder(old)
    return path


def write_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint below `folder`, named by its step. Raises OSError: it cannot be
    written."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {TENSORS: encode_tensors(checkpoint.tensors), METRICS: checkpoint.metrics.encode()}
    body = {"format": FORMAT, "step": checkpoint.step, "facts": checkpoint.facts}
    hashes = {name: sha256(content) for name, content in files.items()} | {"body": hash_body(body)}
    files[FACTS] = json.dumps(body | {"sha256": hashes}, indent=1).encode()
    path = folder / f"{name}-{checkpoint.step:09d}"
    write_folder(path, files)
    return path


def list_checkpoints(folder: Path, name: str = NAME) -> list[Path]:
    """List the checkpoints below a folder, oldest first; of the best, a killed process may have
    left two, of which the later did better."""
    return sorted(path for path in folder.glob(f"{name}-*") if path.is_dir())


def load_latest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Remove half-written checkpoints and read the newest whole one: see `read_newest`."""
    remove_leftovers(folder)
    return read_newest(folder)


def read_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Read the newest checkpoint that is whole; another process may be writing one.

    Returns:
        checkpoint: None if there is none at all.
        complaints: what is wrong with newer ones that were passed over.

    Raises:
        RunError: if there are checkpoints and none is whole.
    """
    complaints: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            return read(path), complaints
        except RunError as error:
            complaints.append(str(error))
    if complaints:
        details = [("bad", line.replace("\n", " ")) for line in complaints]
        raise RunError(diagnostic("no checkpoint of the run is whole", details))
    return None, complaints


def read(path: Path) -> Checkpoint:
    """Read one checkpoint and check every byte of it. Raises RunError: a file is missing, cut
    short, or changed."""
    try:
        stored = read_object(path / FACTS)
        if stored is None:
            raise damage_error(path, FACTS, "missing")
        hashes = stored.pop("sha256")
        if stored["format"] != FORMAT:
            raise damage_error(path, FACTS, f"format {stored['format']}; this elman reads {FORMAT}")
        if hashes["body"] != hash_body(stored):
            raise damage_error(path, FACTS, "changed")
        step = convert(Count, stored["step"], "step")
        facts = convert(dict[str, Any], stored["facts"], "facts")
        content = {name: read_file(path / name) for name in (TENSORS, METRICS)}
    except DamageError as error:
        raise damage_error(path, FACTS, str(error)) from error
    except OSError as error:
        raise damage_error(path, Path(error.filename or path).name, str(error.strerror)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damage_error(path, FACTS, f"cut short or changed ({error})") from error
    for name, data in content.items():
        if sha256(data) != hashes.get(name):
            raise damage_error(path, name, f"cut short or changed ({len(data)} bytes)")
    try:
        return Checkpoint(step, decode_tensors(content[TENSORS]), facts, content[METRICS].decode())
    except UnicodeDecodeError as error:
        raise damage_error(path, METRICS, f"it is not text: {error.reason}") from error
    except ValueError as error:
        raise damage_error(path, TENSORS, str(error)) from error


def damage_error(path: Path, name: str, fault: str) -> RunError:
    """Build the error for a checkpoint that cannot be used."""
    return RunError("a checkpoint is damaged", path=path, file=name, found=fault)


def sha256(content: bytes) -> str:
    """Hash a file's content."""
    return hashlib.sha256(content).hexdigest()


def hash_body(body: dict[str, Any]) -> str:
    """Hash a JSON object independently of its layout."""
    return sha256(json.dumps(body, sort_keys=True).encode())


@dataclass(frozen=True)
class Best:
    """Best weights so far.

    Attributes:
        step: training steps that the weights have seen.
        score: in validation; the loss in the unit of the task.
        weights: of the model, whole, on the CPU, as in a checkpoint.
    """

    step: int
    score: Score
    weights: dict[str, Tensor]

    def checkpoint(self, metrics: str) -> Checkpoint:
        """Checkpoint that stores them.

        Args:
            metrics: the text of metrics.csv.
        """
        return Checkpoint(self.step, self.weights, asdict(self.score), metrics)


def save_best(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write the best weights below `folder`, then remove the previous ones. Raises OSError: it
    cannot be written, as on a full disk; the one before stays."""
    path = write_checkpoint(folder, BEST, checkpoint)
    for old in {*list_checkpoints(folder, BEST)} - {path}:
        remove_folder(old)
    return path


def read_best(folder: Path) -> Checkpoint | None:
    """Read the best weights; None before the first validation. Another process may be writing a
    better one. Raises RunError: it is damaged."""
    while paths := list_checkpoints(folder, BEST):
        try:
            return read(paths[-1])
        except RunError:
            if paths[-1].exists():
                raise
    return None


def best_of(folder: Path) -> Best | None:
    """Read the best weights and their score. Raises RunError: it is damaged."""
    point = read_best(folder)
    if point is None:
        return None
    try:
        return Best(point.step, decode(Score, point.facts), point.tensors)
    except DamageError as error:
        raise damage_error(list_checkpoints(folder, BEST)[-1], "facts", str(error)) from error
