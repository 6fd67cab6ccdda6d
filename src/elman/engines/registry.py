"""Names to engines, imported when first asked for (the project's only deferred imports)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from elman.engines.base import Engine
from elman.errors import EngineError

_WHERE = {  # name -> module, and the engine in it
    "c": ("elman.engines.c.engine", "ENGINE"),
    "triton": ("elman.engines.triton.engine", "ENGINE"),
    "aten": ("elman.engines.aten.engine", "ENGINE"),
    "deer": ("elman.engines.deer.engine", "ENGINE"),
    "scan-backward": ("elman.engines.deer.engine", "SCAN_BACKWARD"),
    "reference": ("elman.engines.reference.engine", "ENGINE"),
}
_NEEDS = {"triton": "cuda"}  # device type; told without importing what the engine is made of
_SCANS = {  # device type -> linear recurrences of its own
    "cpu": "elman.engines.c.scans",
    "cuda": "elman.engines.triton.scans",
}
_NEWTONS = {"cuda": "elman.engines.triton.newton"}  # … whole iterations of its own


def names() -> tuple[str, ...]:
    """All engines, in the order in which ``auto`` considers them."""
    return tuple(_WHERE)


def elsewhere(name: str, device: str) -> str | None:
    """Why an engine need not even be loaded for a device, or None."""
    needed = _NEEDS.get(name, device)
    if needed == device or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return f"it needs a GPU, and this is {device}"


@cache
def find(name: str) -> Engine:
    """The engine called ``name``. Raises EngineError for an unknown name, listing those that
    exist."""
    if name not in _WHERE:
        raise EngineError(f"no engine {name!r}; there are auto, {', '.join(_WHERE)}")
    module, attribute = _WHERE[name]
    engine: Engine = getattr(import_module(module), attribute)
    return engine


@cache
def scans(device: str) -> Any:
    """The linear recurrences that a device has of its own: a module with ``forward`` and
    ``backward`` as of ``elman.engines.c.scans``, or None."""
    return _of_device(_SCANS, device)


@cache
def newton(device: str) -> Any:
    """What makes kernels of Newton's iteration on a device, as of ``elman.engines.triton.newton``,
    or None."""
    found = _of_device(_NEWTONS, device)
    return None if found is None else found.newton


def _of_device(table: Mapping[str, str], device: str) -> Any:
    try:
        return import_module(table[device]) if device in table else None
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("elman"):
            raise
        return None
