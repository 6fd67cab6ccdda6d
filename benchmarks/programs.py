"""Modules of this package as programs in fresh processes, from whichever folder they are run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elman.measuring.process import Program

ROOT = Path(__file__).parents[1]  # the checkout


def program(module: str, *words: str, **settings: Any) -> Program:
    """A module of this package, by its name within it, with arguments.

    Args:
        settings: cache, threads and text, as a :class:`Program` has them.
    """
    return Program(("-m", f"{__package__}.{module}", *words), (ROOT,), **settings)
