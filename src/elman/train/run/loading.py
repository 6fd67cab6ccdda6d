"""The trained model of a run folder, ready to use; and weights for a module from a run, or from a
file of a state_dict, in which it may be a part.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from elman.checks import check_choice, check_path
from elman.errors import ElmanError, InputError, RunError, diagnostic
from elman.files import open_file, read_file
from elman.train.loop.config import Config
from elman.train.loop.layers import own_formula
from elman.train.loop.task import Data, Trained
from elman.train.run.checkpoint import Checkpoint, decode_tensors, newest, read_best
from elman.train.run.folder import RunFolder, open_run, permit_cell
from elman.train.run.forms import FLOATS, check_sizes, check_weights, grouped
from elman.train.run.record import needed, read_record
from elman.train.run.stored import DamageError, filled
from elman.train.tasks.registry import task_of
from elman.version import __version__

SPEC = "model"
FORMULA = "formula"  # in the same file
Weights = Literal["best", "last"]


def load(
    path: str | PathLike[str],
    *,
    weights: Weights = "best",
    cell: str | None = None,
    trust: bool = False,
) -> Trained:
    """Load the trained model of a run folder, as ``elman train`` writes them.

    The weights are those that did best in validation, by the measure that the task tells first
    (loss, perplexity, accuracy, R²); of a run that still trains, the best so far, and of one
    without a validation yet those of its last checkpoint. The data are not needed. What comes back
    has the ``model`` in evaluation mode, on the CPU, its recurrent ``layers``, the ``config`` of
    the run, the ``step`` of the weights, and what its task knows of the data:

    - `text`: ``vocabulary`` (``encode``, ``decode``) and ``sample(length, prompt=…)``;
    - `series`, `images`: ``classes`` and ``predict(values)``, [N, C] chances of N sequences;
    - `regression`: ``predict(x)`` of x [N, T, I], in the units of the data.

    A run whose cell is in a Python file has that file run if you began the run on this machine and
    neither the file nor the run's configuration has changed since; else ``cell`` or ``trust`` has
    to say so.

    Args:
        path: the run folder.
        weights: ``"last"`` for those of the last checkpoint.
        cell: ``"file.py:cell"``, in place of the file that the run names.
        trust: whether the file that the run names may be run.

    Raises:
        InputError: there are no such weights, or the run's cell is in no file.
        MissingPackageError: without the package ``safetensors`` (``pip install "elman[train]"``).
        RunError: it is no run folder, has no checkpoint, is damaged, a newer elman wrote it in a
            way that this one cannot read, or its cell is in a file that is not trusted or has
            another formula by now.

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
        return _built(folder, config, weights_of(folder, weights))
    except RunError as error:
        raise _of_newer(folder, error) from error


def weights_of(folder: RunFolder, weights: Weights = "best") -> Checkpoint:
    """What holds the weights of a run, as :func:`load` has them; nothing in the folder is touched.
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
    point, _ = newest(folder.checkpoints)
    if point is None:
        hint = f"elman resume {folder.path}"
        raise RunError("the run has no checkpoint", hint, path=folder.path)
    return point


def write_spec(folder: RunFolder, data: Data, config: Config) -> None:
    """Keep what a model is built from, so that it can be without the data, and the fingerprint of a
    cell of the user's. Raises RunError: the disk does not take it."""
    folder.write(SPEC, asdict(data.spec) | {FORMULA: own_formula(config)})


def check_formula(folder: RunFolder, config: Config) -> None:
    """Refuse a cell whose file has another formula by now than when the run began. Raises RunError:
    it has, or the file is not to be read."""
    try:
        then = (folder.read(SPEC) or {}).get(FORMULA)
    except DamageError:  # said where it is needed
        return
    now = own_formula(config) if then else ""
    if then and then != now:
        hint = "the cell's file as it was when the run began"
        raise RunError(
            "the cell of the run has changed",
            hint,
            cell=config.cell,
            found=f"its formula was {then}, and is {now}",
        )


def _built(folder: RunFolder, config: Config, point: Checkpoint) -> Trained:
    """Build the model of a run and give it the weights of a checkpoint."""
    task, weights = task_of(config), grouped(point.tensors).get("model", {})
    try:
        spec = filled(task.spec, needed(folder, SPEC))
    except DamageError as error:
        raise RunError(
            "the run is damaged", path=folder.path, found=f"{SPEC}.json: {error}"
        ) from error
    check_sizes(config, weights)
    with torch.random.fork_rng(devices=[]):
        model = task.build(config, spec).to(_dtype(weights))
    _fill(model, weights, folder.path)
    return task.trained(folder.path, config, point.step, model.eval(), spec)


def _dtype(weights: dict[str, Tensor]) -> torch.dtype:
    """What the weights are stored in."""
    floats = (value.dtype for value in weights.values() if value.dtype in FLOATS)
    return next(floats, torch.get_default_dtype())


def _fill(model: nn.Module, weights: dict[str, Tensor], path: Path) -> None:
    """Give a model its weights. Raises RunError: they are another model's."""
    try:
        check_weights(weights, model)
    except RunError as error:
        hint = "the cell's file as it was when the run began"
        raise RunError(
            "the weights are of another model",
            hint,
            path=path,
            error=str(error).partition("found ")[2],
        ) from error
    model.load_state_dict(weights)


def _of_newer(folder: RunFolder, error: RunError) -> RunError:
    """Say that a newer elman wrote what cannot be read, if one did; else the error itself."""
    try:
        wrote = _wrote(folder.read("facts") or {})
    except DamageError:
        return error
    if _numbers(wrote) <= _numbers(__version__):
        return error
    details = [("path", str(folder.path)), ("elman", f"{wrote} then, {__version__} here")]
    details.append(("found", " ".join(str(error).split())))
    return RunError(diagnostic("a newer elman wrote this run", details, "pip install -U elman"))


def _wrote(facts: dict[str, Any]) -> str:
    """The version that began a run; empty if its facts do not tell."""
    machine = facts.get("machine")
    return str(machine.get("elman", "")) if isinstance(machine, dict) else ""


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


_AS_TRAINED = "the cell, --layers and --heads as they were trained"
_OF_LAYER = re.compile(r"_l(?P<layer>\d+)(?P<reverse>_reverse)?$")


def load_weights(module: nn.Module, path: Path, weights: Weights = "best") -> str:
    """Fill a module from a run folder, a ``.safetensors`` file or what ``torch.save`` wrote.

    The module may be a part of what was saved: of the names there, those that end as its own and
    have one beginning in common are taken. ``weights`` says which ones of a run.

    Returns:
        That beginning: ``"model.layers."``, or ``""``.

    Raises:
        RunError: there is nothing that can be read.
        InputError: it has no such module, several of them, of other sizes, or with more layers,
            directions or weights.
    """
    given = _read(path, weights)
    own = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    first = next(iter(own))
    starts = [
        name.removesuffix(first)
        for name in given
        if name.endswith(first) and (name == first or name.removesuffix(first).endswith("."))
    ]
    whole = [start for start in starts if all(start + name in given for name in own)]
    if not whole:
        raise InputError(
            "the weights are not those of this module",
            _AS_TRAINED,
            path=path,
            wanted=", ".join(own),
            there=_some(given),
        )
    if len(whole) > 1:
        raise InputError(
            "the weights fit several parts of what was saved",
            "save the state_dict of one of them",
            path=path,
            parts=", ".join(whole),
        )
    start = whole[0]
    wrong = [n for n, shape in own.items() if tuple(given[start + n].shape) != shape]
    if wrong:
        name = wrong[0]
        raise InputError(
            f"{start + name} is {[*given[start + name].shape]}, not {[*own[name]]}",
            _sizes(path),
            path=path,
        )
    if left := _besides(given, start, own):
        raise InputError(
            "there is more than this module has", _more(left), path=path, besides=_some(left)
        )
    module.load_state_dict({name: given[start + name] for name in own})
    return start


def _read(path: Path, weights: Weights) -> Mapping[str, Tensor]:
    try:
        if path.is_dir():
            return weights_of(RunFolder(path), weights).tensors
        if path.suffix == ".safetensors":
            return decode_tensors(read_file(path))
        with open_file(path) as file:
            found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except ElmanError:
        raise
    except Exception as error:  # bytes that are no pickle raise anything
        text = str(error).partition("\n")[0]
        hint = "a run folder, or a state_dict: torch.save(net.state_dict(), …), .safetensors"
        raise RunError("no weights can be read", hint, path=path, error=text) from error
    if not isinstance(found, Mapping):
        raise RunError("the file holds no state_dict", path=path)
    named = {name: value for name, value in found.items() if isinstance(name, str)}
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}


def _sizes(path: Path) -> str:
    """What to write for sizes that fit: a run knows those of its layers."""
    config = (RunFolder(path).read("config") if path.is_dir() else None) or {}
    options = {"inputs": "embedding", "hidden": "hidden", "layers": "layers"}
    known = [f"--{option} {config[name]}" for option, name in options.items() if name in config]
    if not known:
        return "--hidden, --inputs and --dim as they were trained"
    return f"{' '.join(known)}, as they were trained; the rest by the shapes above"


def _besides(given: Iterable[str], start: str, own: Container[str]) -> list[str]:
    """Names of the same module in what was saved, which ours lacks."""
    names = (name.removeprefix(start) for name in given if name.startswith(start))
    return [name for name in names if "." not in name and name not in own]


def _more(left: Iterable[str]) -> str:
    """What to write for a module that has these weights too."""
    found = [match for name in left if (match := _OF_LAYER.search(name))]
    if any(match["reverse"] for match in found):
        return "what is written here has one direction, elman.export.to_onnx(net, …) both"
    layers = 1 + max((int(match["layer"]) for match in found), default=0)
    return f"--layers {layers}, if the rest is as it was trained" if layers > 1 else _AS_TRAINED


def _some(names: Collection[str]) -> str:
    shown = list(names)[:8]
    return ", ".join(shown) + (" …" if len(names) > len(shown) else "")
