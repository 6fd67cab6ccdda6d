"""Names to engines, imported when first asked for (the project's only deferred imports)."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from elman.engines.base import Engine
from elman.errors import EngineError

_WHERE = {
    "c": "elman.engines.c.engine",
    "aten": "elman.engines.aten.engine",
    "reference": "elman.engines.reference.engine",
}


def names() -> tuple[str, ...]:
    """All engines, in the order in which ``auto`` considers them."""
    return tuple(_WHERE)


@cache
def find(name: str) -> Engine:
    """The engine called ``name``. Raises EngineError for an unknown name, listing those that
    exist."""
    if name not in _WHERE:
        raise EngineError(f"no engine {name!r}; there are auto, {', '.join(_WHERE)}")
    engine: Engine = import_module(_WHERE[name]).ENGINE
    return engine
