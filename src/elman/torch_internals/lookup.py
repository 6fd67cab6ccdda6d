"""Looks private names up, and notes which are lacking."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportAttributeAccessIssue=false
# (what is private has no types)

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch

from elman.errors import EngineError

LACKING: list[str] = []  # private names that this torch, or this Triton, does not have


def private(owner: str, name: str, instead: Any) -> Any:
    """A name of a module or a class of torch's; ``instead`` where there is none."""
    value: Any = torch
    for part in owner.split(".")[1:]:
        value = getattr(value, part, None)
    value = getattr(value, name, None)
    if value is not None:
        return value
    LACKING.append(f"{owner}.{name}")
    return instead


def import_optional(module: str) -> None:
    """Import a module of torch's that may not be there."""
    if importlib.util.find_spec(module) is not None:
        importlib.import_module(module)


def unavailable(feature: str, name: str) -> EngineError:
    """The error of a feature that needs a name which this torch lacks."""
    return EngineError(f"{feature} needs {name}, which torch {torch.__version__} does not have")
