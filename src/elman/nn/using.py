"""Which engine is asked for: ``using(engine=…)`` before ELMAN_ENGINE before the module's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

from elman.engines import registry
from elman.errors import EngineError
from elman.nn.compile.dynamo import constant

VARIABLE = "ELMAN_ENGINE"

_asked: ContextVar[str | None] = ContextVar("elman_engine", default=None)


def checked(engine: str) -> str:
    """The name itself. Raises EngineError if there is no such engine, listing those that exist."""
    if engine != "auto" and engine not in registry.names():
        raise EngineError(f"no engine {engine!r}; there are auto, {', '.join(registry.names())}")
    return engine


@contextmanager
def using(*, engine: str) -> Iterator[None]:
    """Run every module inside the ``with`` block on one engine, whatever it was made with.

    It overrides the environment variable ELMAN_ENGINE, which overrides a module's own ``engine=``.
    ``engine="auto"`` gives the choice back to measurement. Other threads are not affected.

    Raises:
        EngineError: there is no engine of that name; inside the block, whatever that engine cannot
            run.

    Example:
        >>> with elman.using(engine="reference"):
        ...     out, h = elman.GRU(8, 16)(torch.randn(5, 2, 8))
    """
    token = _asked.set(checked(engine))
    try:
        yield
    finally:
        _asked.reset(token)


def unserved(like: Tensor) -> str | None:
    """Why no engine compiles steps for tensors like one, or None; layers of torch's cells are then
    torch's own."""
    kind, dtype = like.device.type, like.dtype
    if serves(kind, dtype):
        return None
    return f"dtype {dtype}" if registry.compiles_on(kind) else f"tensors on {kind}"


@constant
def serves(kind: str, dtype: torch.dtype) -> bool:
    """Whether an engine compiles steps of a type for a kind of device."""
    return _serves(kind, dtype)


@cache
def _serves(kind: str, dtype: torch.dtype) -> bool:
    return registry.fuses(kind, str(dtype).removeprefix("torch."))


def autocast_type(kind: str) -> torch.dtype | None:
    """What autocast computes in on a kind of device; None where it is off."""
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return None
    return torch.get_autocast_dtype(kind)


def wanted(own: str) -> str:
    """The engine that a module made with ``engine=own`` has to use now.

    Raises:
        EngineError: ELMAN_ENGINE names an engine that does not exist.
    """
    asked = _asked.get()
    if asked is not None:
        return asked
    from_environment = os.environ.get(VARIABLE)
    return checked(from_environment) if from_environment else own
