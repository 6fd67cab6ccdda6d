"""Names to engines, imported when first asked for (the project's only deferred imports)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from elman.engines.base import Engine
from elman.errors import EngineError
from elman.plan.spec import PlanOptions

if TYPE_CHECKING:
    from elman.engines.cross_entropy import CrossEntropy


class _Row(NamedTuple):
    """Module of an engine and the only device type that it runs on, if any; read without an
    import."""

    module: str
    attribute: str = "ENGINE"
    device: str | None = None


_ENGINES = {  # in the order in which ``auto`` considers them
    "c": _Row("elman.engines.c.engine", device="cpu"),
    "triton": _Row("elman.engines.triton.engine", device="cuda"),
    "aten": _Row("elman.engines.aten.engine"),
    "deer": _Row("elman.engines.deer.engine"),
    "scan-backward": _Row("elman.engines.deer.engine", "SCAN_BACKWARD"),
    "reference": _Row("elman.engines.reference.engine"),
}
_SERVED_WITHOUT_MEMORY = "meta"  # shapes alone: it has every dtype of any device


def names() -> tuple[str, ...]:
    """All engines, in the order in which ``auto`` considers them."""
    return tuple(_ENGINES)


def elsewhere(name: str, device: str) -> str | None:
    """Why an engine cannot run on a device, decided without importing it; or None."""
    row = _ENGINES.get(name)
    if row is None or row.device in (None, device) or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return f"it is made for {row.device}, and this is {device}"


@cache
def find(name: str) -> Engine:
    """The engine called ``name``. Raises EngineError for an unknown name, listing those that
    exist."""
    if name not in _ENGINES:
        raise EngineError(f"no engine {name!r}; there are auto, {', '.join(_ENGINES)}")
    row = _ENGINES[name]
    engine: Engine = getattr(import_module(row.module), row.attribute)
    return engine


def loaded(name: str) -> Engine | None:
    """The engine called ``name`` if it has been imported, else None."""
    row = _ENGINES[name]
    module = sys.modules.get(row.module)
    return None if module is None else getattr(module, row.attribute, None)


def installed(name: str) -> Engine | str:
    """The engine called ``name``, or the missing package."""
    try:
        return find(name)
    except ModuleNotFoundError as missing:
        absent = missing.name or ""
        is_elman = absent.startswith("elman")
        if is_elman and not f"elman.engines.{name}.engine".startswith(absent):
            raise  # a bug in elman, not an optional part that is not installed
        return f"{absent} is not part of this installation"


def on(device: str) -> Iterator[Engine]:
    """The engines made for a type of device that are installed here."""
    for name, row in _ENGINES.items():
        if row.device and not elsewhere(name, device):
            engine = installed(name)
            if isinstance(engine, Engine):
                yield engine


def compiles_on(device: str) -> bool:
    """Whether some engine is made for a type of device, wherever it is installed."""
    return any(row.device == device for row in _ENGINES.values())


@cache
def scans(device: str) -> Any:
    """The linear recurrences that an engine has for a device (:meth:`Engine.scans`), or None."""
    return next((module for engine in on(device) if (module := engine.scans()) is not None), None)


@cache
def newton(device: str) -> Any:
    """Constructor of Newton kernels for a device (:meth:`Engine.newton`), or None."""
    return next((maker for engine in on(device) if (maker := engine.newton()) is not None), None)


@cache
def cross_entropy(device: str) -> CrossEntropy | None:
    """Kernel of a decoder and its loss for a device (:meth:`Engine.cross_entropy`), or None."""
    return next(
        (function for engine in on(device) if (function := engine.cross_entropy()) is not None),
        None,
    )


@cache
def lacks_bf16(device: str, options: PlanOptions, samples: int, weights: int) -> str | None:
    """Why no engine for a device has products of bfloat16 in float32 steps, or gains from them
    (:meth:`Engine.slow_bf16`); None if one does."""
    reasons = [e.lacks_bf16(options) or e.slow_bf16(samples, weights) for e in on(device)]
    return None if None in reasons else (reasons or [f"device {device} has none"])[0]


@cache
def fuses(device: str, dtype: str) -> bool:
    """Whether some engine compiles steps for a type on a device."""
    if device == _SERVED_WITHOUT_MEMORY:
        return any(fuses(row.device, dtype) for row in _ENGINES.values() if row.device)
    return any(engine.fuses and not engine.lacks(device, dtype) for engine in on(device))
