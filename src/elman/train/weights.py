"""Weights of a module from a run, or from a file of a state_dict, in which it may be a part."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elman.errors import ElmanError, InputError, RunError, diagnostic
from elman.files import open_file, read_file
from elman.train.folder import RunFolder
from elman.train.loading import Weights, weights_of
from elman.train.tensors import decode_tensors

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
            diagnostic(
                "the weights are not those of this module",
                [("path", str(path)), ("wanted", ", ".join(own)), ("there", _some(given))],
                _AS_TRAINED,
            )
        )
    if len(whole) > 1:
        raise InputError(
            diagnostic(
                "the weights fit several parts of what was saved",
                [("path", str(path)), ("parts", ", ".join(whole))],
                "save the state_dict of one of them",
            )
        )
    start = whole[0]
    wrong = [n for n, shape in own.items() if tuple(given[start + n].shape) != shape]
    if wrong:
        name = wrong[0]
        raise InputError(
            diagnostic(
                f"{start + name} is {[*given[start + name].shape]}, not {[*own[name]]}",
                [("path", str(path))],
                _sizes(path),
            )
        )
    if left := _besides(given, start, own):
        raise InputError(
            diagnostic(
                "there is more than this module has",
                [("path", str(path)), ("besides", _some(left))],
                _more(left),
            )
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
        details = [("path", str(path)), ("error", text)]
        hint = "a run folder, or a state_dict: torch.save(net.state_dict(), …), .safetensors"
        raise RunError(diagnostic("no weights can be read", details, hint)) from error
    if not isinstance(found, Mapping):
        raise RunError(diagnostic("the file holds no state_dict", [("path", str(path))]))
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
