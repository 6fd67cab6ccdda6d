"""Saving cells by qualified name, as functions and classes are."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from elman.errors import PickleError

_RATHER = "save the weights alone: torch.save(module.state_dict(), path)"


def is_in_cloudpickle() -> bool:
    """Whether cloudpickle asks for the state of an object. It saves functions and classes of
    ``__main__`` as their code, for joblib, Ray and Dask: the process that loads them has another
    ``__main__``. To be called by the object's ``__reduce__``."""
    frame = inspect.currentframe()
    frame = frame and frame.f_back and frame.f_back.f_back
    return frame is not None and "cloudpickle" in str(frame.f_globals.get("__name__"))


def look_up(module: str | None, name: str) -> Any:
    """Resolve a dotted name in a module; None if there is no such module or name."""
    try:
        value: Any = importlib.import_module(module or "")
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return value


def nameless(module: str | None, name: str, where: str, redefined: bool) -> PickleError:
    """The error for a cell that is to be saved, but whose name stands for something else."""
    outside, local, short = name.rpartition(".<locals>.")
    if local:
        problem, hint = (
            f"it is defined inside {outside}()",
            "define it at the top level of a module",
        )
    elif short == "<lambda>":
        problem, hint = "a lambda has no name", "write it with def at the top level of a module"
    elif redefined:
        problem, hint = f"{module}.{name} is another formula now", "make the module anew with that"
    else:
        problem, hint = (
            f"{module}.{name} is not a cell",
            f"let {name} be the cell's name in {module}",
        )
    return PickleError(
        f"cell {short} cannot be saved: {problem}", f"{hint}, or {_RATHER}", at=where
    )


def changed(name: str, where: str, difference: str) -> PickleError:
    """The error for a saved cell whose name stands for another formula now."""
    return PickleError(
        f"cell {name} is not the one that was saved: {difference}",
        "restore the old formula; or make the module anew and load_state_dict() its weights",
        now=where,
    )
