"""Dims and shapes of values in a graph, without batch and time.

A dim is an ordered tuple of *atoms*: ``3H`` is (H, H, H), ``I+H`` is (I, H), ``4`` is (4,).
Equality, ``split`` and ``concat`` are tuple operations; there is no symbolic algebra.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby

Atom = str | int
Dim = tuple[Atom, ...]
Shape = tuple[Dim, ...]

SCALAR: Shape = ()

_TERM = re.compile(r"(?P<count>\d+)?\s*\*?\s*(?P<name>[A-Za-z_]\w*)?")


def parse_dim(text: str) -> Dim:
    """Parse ``"3H"``, ``"I+H"``, ``"4"``; raises ValueError with the reason otherwise."""
    atoms: list[Atom] = []
    for part in text.split("+"):
        term = part.strip()
        match = _TERM.fullmatch(term)
        if not term or match is None:
            raise ValueError(f"cannot read the dim {text!r}: write a name, a number, 3H or I+H")
        count, name = int(match["count"] or 1), match["name"]
        if count < 1:
            raise ValueError(f"the dim {text!r} has a zero in it")
        if name is None:
            if count == 1:
                raise ValueError("a dim of 1 is written as a scalar: `m`, not `m[1]`")
            atoms.append(count)
        else:
            atoms.extend([name] * count)
    return tuple(atoms)


def show_dim(dim: Dim) -> str:
    """Print a dim as it is written: (H, H, H) -> 3H, (I, H) -> I+H."""
    terms: list[str] = []
    for atom, run in groupby(dim):
        count = len(list(run))
        if isinstance(atom, int):
            terms.extend([str(atom)] * count)
        else:
            terms.append(atom if count == 1 else f"{count}{atom}")
    return "+".join(terms)


def show_shape(shape: Shape) -> str:
    """Print a shape: ``[3H, I]``, ``[H]``, ``scalar``."""
    if not shape:
        return "scalar"
    return "[" + ", ".join(show_dim(dim) for dim in shape) + "]"


def atom_size(atom: Atom, dims: Mapping[str, int]) -> int:
    """Size of one atom under a binding of names to sizes."""
    return atom if isinstance(atom, int) else dims[atom]


def dim_size(dim: Dim, dims: Mapping[str, int]) -> int:
    """Size of a dim under a binding of names to sizes."""
    return sum(atom_size(atom, dims) for atom in dim)


def shape_size(shape: Shape, dims: Mapping[str, int]) -> tuple[int, ...]:
    """Sizes of all dims of a shape under a binding of names to sizes."""
    return tuple(dim_size(dim, dims) for dim in shape)


def names_in(shape: Shape) -> set[str]:
    """The named dims that occur in a shape."""
    return {atom for dim in shape for atom in dim if isinstance(atom, str)}
