"""Arrays out of what users hand in, checked: one that is missing, unknown or of another shape is
told by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from elman.errors import InputError, ShapeError
from elman.weights.gates import Array, Gates, numbers

Shapes = Mapping[str, tuple[int, ...]]  # by role of Gates


class Layer(NamedTuple):
    """One layer in one direction.

    Attributes:
        suffix: of its weights' names: ``l0``, ``l0_reverse`` …
        inputs: I.
        units: H.
        directions: of the module.
    """

    suffix: str
    inputs: int
    units: int
    directions: int


def present(part: Gates) -> Iterator[tuple[str, Array]]:
    """The arrays of a layer that there are, by role."""
    return ((role, value) for role, value in part._asdict().items() if value is not None)


def wrong(expected: str, got: Any) -> InputError:
    """What is to be raised where something else was given."""
    return InputError(f"this layout is {expected}, not {type(got).__name__}")


def array(value: Any, name: str, shape: tuple[int, ...] | None) -> Array:
    """A value as an array of numbers.

    Raises:
        InputError: it is none.
        ShapeError: it has not this shape.
    """
    try:
        found = numbers(value) if isinstance(value, torch.Tensor) else np.asarray(value)
        found = found if found.dtype == np.float64 else found.astype(np.float32)
    except (TypeError, ValueError):
        raise InputError(f"{name} is not an array of numbers: {type(value).__name__}") from None
    if shape is not None and found.shape != shape:
        raise ShapeError(f"{name} is {[*found.shape]}, not {[*shape]}")
    return found


def taken(
    left: dict[str, Any], name: str, shape: tuple[int, ...], where: str = "", needed: bool = True
) -> Array | None:
    """Take an array out of a dict; None if it is not there and not needed.

    Raises:
        InputError, ShapeError: it is needed, or does not fit.
    """
    value = left.pop(name, None)
    if value is not None:
        return array(value, name + where, shape)
    if needed:
        others = ", ".join(map(str, left)) or "nothing"
        raise InputError(f"{name}{where} is missing; there is {others}")
    return None


def by_role(
    left: dict[str, Any], names: Mapping[str, str], shapes: Shapes, where: str = ""
) -> Gates:
    """Take the arrays of a layer; biases and peepholes may be missing."""
    found = {
        role: taken(left, name, shapes[role], where, role in "WR") for role, name in names.items()
    }
    return Gates(**found)  # type: ignore[arg-type]


def none_left(left: Mapping[str, Any], where: str = "") -> None:
    """Raise InputError if arrays are left that nobody took."""
    names = [str(name) for name, value in left.items() if value is not None]
    if names:
        raise InputError(f"nothing of the module is called {', '.join(names)}{where}")


def trees(arrays: Any, layers: Sequence[Layer]) -> list[Mapping[str, Any]]:
    """A dict per layer, of which one alone needs no list.

    Raises:
        InputError: there are more, or fewer, or something else.
    """
    found = [arrays] if isinstance(arrays, Mapping) else arrays
    if not isinstance(found, (list, tuple)) or not all(isinstance(v, Mapping) for v in found):
        raise wrong("a dict of arrays for each layer", arrays)
    if len(found) != len(layers):
        suffixes = ", ".join(layer.suffix for layer in layers)
        raise InputError(f"there are {len(found)} dicts of arrays, not {len(layers)}: {suffixes}")
    return list(found)
