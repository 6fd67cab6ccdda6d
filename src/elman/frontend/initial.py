"""Initialisation of weights and states: validation of ``@cell(init=…)``."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from elman.errors import TraceError
from elman.frontend.signature import Declared
from elman.ir.types import is_matrix

Init = Any  # a number, the name of a scheme, an array or a function; no array type is known here

_SHORT = 60  # letters of values that a message repeats
FILLS = ("zeros", "ones")  # of any shape
SCHEMES = (  # torch.nn.init's, for matrices
    "orthogonal",
    "xavier_uniform",
    "xavier_normal",
    "kaiming_uniform",
    "kaiming_normal",
    "eye",
    *FILLS,
)


def check_init(
    name: str, init: Init, weights: Sequence[Declared], states: Sequence[Declared], where: str
) -> None:
    """Check the initialisation of a weight or state, apart from sizes.
    Raises TraceError: there is no such weight, state or scheme, a scheme for matrices is given to
    something else, or ``how`` is nothing to begin with."""
    entries = {entry.name: entry for entry in (*weights, *states)}
    if name not in entries:
        declared = f"there are {', '.join(entries)}"
        raise TraceError(
            f"init names {name!r}, which is neither a weight nor a state", declared, at=where
        )
    weight = entries[name]
    if isinstance(init, str) and init not in SCHEMES:
        near = get_close_matches(init, SCHEMES, 1)
        hint = f"init={{{name!r}: {near[0]!r}}}" if near else f"there are {', '.join(SCHEMES)}"
        raise TraceError(f"init of {name}: no scheme {init!r}", hint, at=where)
    matrix = len(weight.shape) == 2 or is_matrix(weight)
    if isinstance(init, str) and init not in FILLS and not matrix:
        raise TraceError(
            f"init of {name}: {init} is for matrices, which {weight} is not",
            f"init={{{name!r}: 0.5}}, or {' or '.join(map(repr, FILLS))}, or a function",
            at=where,
        )
    if not (isinstance(init, str | int | float) or callable(init) or hasattr(init, "shape")):
        kind = type(init).__name__
        hint = "give a number, the name of a scheme, a tensor, or a function of the parameter"
        values: list[Any] = [*init] if isinstance(init, list | tuple) else []
        if values:
            text = str(values)
            hint = f"torch.tensor({text if len(text) <= _SHORT else '…'})"
        raise TraceError(f"init of {name}: a {kind} says nothing about a weight", hint, at=where)
