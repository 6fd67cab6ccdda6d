"""Cells of any depth, each found again by its name: ``rhn`` is the usual one, ``rhn_10`` of depth
10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elman.frontend.cell import Cell


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function that is made by another one, under the name that its module knows it by."""
    function.__name__ = function.__qualname__ = name
    return function


def numbered(module: str, name: str, prefix: str, make: Callable[[int], Cell]) -> Cell:
    """What a module's ``__getattr__`` gives for ``prefix_10``. Raises AttributeError."""
    number = name.removeprefix(f"{prefix}_")
    if not number.isdecimal() or name == number:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return make(int(number))
