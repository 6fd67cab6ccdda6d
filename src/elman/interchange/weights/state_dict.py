"""The state_dict of a module, of a file in which the module may be a part."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elman.errors import ElmanError, InputError, RunError
from elman.extras import require
from elman.files import open_file, read_file

_AS_TRAINED = "the cell, --layers, --heads and sizes as they were trained"
_OF_LAYER = re.compile(r"_l(?P<layer>\d+)(?P<reverse>_reverse)?$")


def load_weights(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> str:
    """Fill a module with weights by name.

    The module may be a part of what was saved: of the names there, those that end as its own and
    have one beginning in common are taken.

    Args:
        path: where the weights were, for the message.

    Returns:
        That beginning: ``"model.layers."``, or ``""``.

    Raises:
        InputError: there is no such module, several of them, of other sizes, or with more layers,
            directions or weights.
    """
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    first = next(iter(shapes))
    candidates = [
        name.removesuffix(first)
        for name in tensors
        if name.endswith(first) and (name == first or name.removesuffix(first).endswith("."))
    ]
    prefixes = [prefix for prefix in candidates if all(prefix + name in tensors for name in shapes)]
    if not prefixes:
        raise InputError(
            "the weights are not those of this module",
            _AS_TRAINED,
            path=path,
            wanted=", ".join(shapes),
            there=_abbreviate(tensors),
        )
    if len(prefixes) > 1:
        raise InputError(
            "the weights fit several parts of what was saved",
            "save the state_dict of one of them",
            path=path,
            parts=", ".join(prefixes),
        )
    prefix = prefixes[0]
    wrong = [n for n, shape in shapes.items() if tuple(tensors[prefix + n].shape) != shape]
    if wrong:
        name = wrong[0]
        raise InputError(
            f"{prefix + name} is {[*tensors[prefix + name].shape]}, not {[*shapes[name]]}",
            _AS_TRAINED,
            path=path,
        )
    if extra := _extra_names(tensors, prefix, shapes):
        raise InputError(
            "there is more than this module has",
            _suggest_options(extra),
            path=path,
            besides=_abbreviate(extra),
        )
    module.load_state_dict({name: tensors[prefix + name] for name in shapes})
    return prefix


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a ``.safetensors`` file, or what ``torch.save`` wrote. Raises RunError: it holds nothing
    that can be read; MissingPackageError: safetensors is not installed."""
    try:
        if path.suffix == ".safetensors":
            library = require("safetensors.torch", "a file of tensors")
            return library.load(read_file(path))
        with open_file(path) as file:
            content: Any = torch.load(file, map_location="cpu", weights_only=True)
    except ElmanError:
        raise
    except Exception as error:  # bytes that are no pickle raise anything
        text = str(error).partition("\n")[0]
        hint = "a run folder, or a state_dict: torch.save(net.state_dict(), …), .safetensors"
        raise RunError("no weights can be read", hint, path=path, error=text) from error
    if not isinstance(content, Mapping):
        raise RunError("the file holds no state_dict", path=path)
    entries = {name: value for name, value in content.items() if isinstance(name, str)}
    return {name: value for name, value in entries.items() if isinstance(value, Tensor)}


def _extra_names(tensors: Iterable[str], prefix: str, module_names: Container[str]) -> list[str]:
    """Names that were saved beside the module's own, which the module lacks."""
    names = (name.removeprefix(prefix) for name in tensors if name.startswith(prefix))
    return [name for name in names if "." not in name and name not in module_names]


def _suggest_options(names: Iterable[str]) -> str:
    """Suggest the options of a module that has these weights too."""
    matches = [match for name in names if (match := _OF_LAYER.search(name))]
    if any(match["reverse"] for match in matches):
        return "what is written here has one direction, elman.export.to_onnx(net, …) both"
    layers = 1 + max((int(match["layer"]) for match in matches), default=0)
    return f"--layers {layers}, if the rest is as it was trained" if layers > 1 else _AS_TRAINED


def _abbreviate(names: Collection[str]) -> str:
    first = list(names)[:8]
    return ", ".join(first) + (" …" if len(names) > len(first) else "")
