"""The trained model of a run folder, ready to use."""

from __future__ import annotations

import re
from dataclasses import asdict
from os import PathLike
from typing import Literal, get_args

import torch

from elman.checks import check_choice, check_path
from elman.errors import RunError, diagnostic
from elman.train.loop.config import Config
from elman.train.loop.layers import cell_fingerprint
from elman.train.loop.task import Data, Trained
from elman.train.run.checkpoint import Checkpoint, read_best, read_newest
from elman.train.run.folder import RunFolder, open_run, permit_cell
from elman.train.run.forms import FLOATS, check_sizes, check_weights, group_tensors
from elman.train.run.record import read_needed, read_record
from elman.train.run.stored import DamageError, decode
from elman.train.tasks.registry import task_of
from elman.version import __version__

SPEC = "model"
FORMULA = "formula"  # in the same file
_FORMULA_HINT = "the cell's file as it was when the run began"
Weights = Literal["best", "last"]


def load(
    path: str | PathLike[str],
    *,
    weights: Weights = "best",
    cell: str | None = None,
    trust: bool = False,
) -> Trained:
    """Load the trained model of a run folder of ``elman train``.

    The default weights have the best validation result so far, by the task's main measure (loss,
    perplexity, accuracy or R²); before the first validation, those of the last checkpoint. The data
    are not needed. The result has the ``model`` in evaluation mode, on the CPU, its recurrent
    ``layers``, the ``config`` of the run, the ``step`` of the weights, and by task:

    - `text`: ``vocabulary`` (``encode``, ``decode``) and ``sample(length, prompt=…)``;
    - `series`, `images`: ``classes`` and ``predict(values)``, [N, C] probabilities;
    - `regression`: ``predict(x)`` of x [N, T, I], in the units of the data.

    If the run's cell is in a Python file, that file is run if you started the run on this machine
    and neither the file nor the run's configuration has changed. Otherwise pass ``cell`` or
    ``trust``.

    Args:
        path: the run folder.
        weights: ``"last"`` for those of the last checkpoint.
        cell: ``"file.py:cell"``, instead of the file that the run names.
        trust: allow running the file that the run names.

    Raises:
        InputError: there are no such weights, or the run's cell is not in a file.
        MissingPackageError: without the package ``safetensors`` (``pip install "elman[train]"``).
        RunError: the folder is not a run, has no checkpoint, is damaged, or was written by a newer
            elman; or the cell's file is not trusted or has another formula now.

    Example:
        >>> run = elman.load("runs/first")
        >>> ids = torch.from_numpy(run.vocabulary.encode("the cat"))[:, None].long()
        >>> logits, state = run.model(ids)
        >>> logits.shape == (7, 1, len(run.vocabulary))
        True
        >>> text = run.sample(20, prompt="the ", temperature=0.5)
        >>> len(text)
        20
        >>> run.layers(torch.randn(5, 1, 4))[0].shape
        torch.Size([5, 1, 8])
    """
    check_choice("weights", weights, get_args(Weights))
    folder = open_run(check_path("path", path, 'elman.load("runs/first")').expanduser())
    try:
        record = read_record(folder)
        config = record.require()[0] if record.config is None else record.config
        config = permit_cell(folder, config, cell, trust)
        check_formula(folder, config)
        return _build_trained(folder, config, weights_of(folder, weights))
    except RunError as error:
        raise _blame_newer_version(folder, error) from error


def weights_of(folder: RunFolder, weights: Weights = "best") -> Checkpoint:
    """Read the checkpoint with the weights that :func:`load` takes; nothing is written.
    Raises InputError: there are no such weights; RunError: there is no checkpoint, or the best one
    is damaged."""
    check_choice("weights", weights, get_args(Weights))
    try:
        best = read_best(folder.checkpoints) if weights == "best" else None
    except RunError as error:
        hint = f'elman.load("{folder.path}", weights="last")'
        raise RunError(f"{error}\n  hint  {hint}") from error
    if best is not None:
        return best
    point, _ = read_newest(folder.checkpoints)
    if point is None:
        hint = f"elman resume {folder.path}"
        raise RunError("the run has no checkpoint", hint, path=folder.path)
    return point


def write_spec(folder: RunFolder, data: Data, config: Config) -> None:
    """Write the specification that a model is built from, and the fingerprint of a user's cell, so
    that a model can be built without the data. Raises RunError: the disk does not take it."""
    folder.write(SPEC, asdict(data.spec) | {FORMULA: cell_fingerprint(config)})


def check_formula(folder: RunFolder, config: Config) -> None:
    """Refuse a cell whose file has another formula by now than when the run began. Raises RunError:
    it has, or the file is not to be read."""
    try:
        saved = (folder.read(SPEC) or {}).get(FORMULA)
    except DamageError:  # said where it is needed
        return
    current = cell_fingerprint(config) if saved else ""
    if saved and saved != current:
        raise RunError(
            "the cell of the run has changed",
            _FORMULA_HINT,
            cell=config.cell,
            found=f"its formula was {saved}, and is {current}",
        )


def _build_trained(folder: RunFolder, config: Config, point: Checkpoint) -> Trained:
    """Build the model of a run and give it the weights of a checkpoint."""
    task, weights = task_of(config), group_tensors(point.tensors).get("model", {})
    try:
        spec = decode(task.spec, read_needed(folder, SPEC))
    except DamageError as error:
        raise RunError(
            "the run is damaged", path=folder.path, found=f"{SPEC}.json: {error}"
        ) from error
    check_sizes(config, weights)
    floats = [value.dtype for value in weights.values() if value.dtype in FLOATS]
    with torch.random.fork_rng(devices=[]):
        model = task.build(config, spec).to(floats[0] if floats else torch.get_default_dtype())
    try:
        check_weights(weights, model)
    except RunError as error:
        raise RunError(
            "the weights are of another model",
            _FORMULA_HINT,
            path=folder.path,
            error=str(error).partition("found ")[2],
        ) from error
    model.load_state_dict(weights)
    return task.trained(folder.path, config, point.step, model.eval(), spec)


def _blame_newer_version(folder: RunFolder, error: RunError) -> RunError:
    """Replace an error by a hint to upgrade, if a newer elman wrote the run."""
    try:
        wrote = str(read_needed(folder, "facts")["machine"]["elman"])
    except (DamageError, LookupError, TypeError):
        return error
    writer, reader = (re.findall(r"\d+", version) for version in (wrote, __version__))
    if [*map(int, writer)] <= [*map(int, reader)]:
        return error
    details = [("path", str(folder.path)), ("elman", f"{wrote} then, {__version__} here")]
    details.append(("found", " ".join(str(error).split())))
    return RunError(diagnostic("a newer elman wrote this run", details, "pip install -U elman"))
