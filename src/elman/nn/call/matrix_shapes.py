"""Matrices per sample at the border of a module: [.., K, V] outside, rows of K · V units inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from elman.frontend.cell import Cell
from elman.frontend.signature import Declared
from elman.ir.types import axes_of

Axes = tuple[int, int] | None


class MatrixShapes(NamedTuple):
    """Rows and columns of a module's matrices per sample; None for what is a vector or a scalar.

    Attributes:
        inputs, static, states, outputs: in declared order. What no one tensor holds, outputs of two
            directions and states of unlike layers, stays as it is inside.
    """

    inputs: tuple[Axes, ...]
    static: tuple[Axes, ...]
    states: tuple[Axes, ...]
    outputs: tuple[Axes, ...]

    @staticmethod
    def of(cells: Sequence[tuple[Cell, Mapping[str, int]]], *, alike: bool, two: bool) -> Any:
        """The matrices of a module of some cells, with the sizes of their dims; None if there are
        none. ``alike``: whether all layers have the same states; ``two``: directions."""
        (first, sizes), (last, last_sizes) = cells[0], cells[-1]
        outputs = last.outputs or last.states[:1]
        shapes = MatrixShapes(
            _axes(first.inputs, sizes),
            _axes(first.static, sizes),
            _axes(first.states, sizes) if alike else (),
            () if two else _axes(outputs, last_sizes),
        )
        return shapes if any(any(group) for group in shapes) else None

    def flatten(self, x: Any, state: Any, options: dict[str, Any]) -> tuple[Any, Any]:
        """Inputs and states with rows of K · V units; static inputs are replaced in the options."""
        if "static" in options:
            options["static"] = _each(_flat, options["static"], self.static)
        return _each(_flat, x, self.inputs), _each(_flat, state, self.states)

    def restore(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results of a call with matrices [.., K, V]: outputs, sequences of states if they were
        asked for, last states."""
        output, *sequences, last = results
        wide = [_each(_wide, value, self.states if self.outputs else ()) for value in sequences]
        return _each(_wide, output, self.outputs), *wide, _each(_wide, last, self.states)


def _axes(entries: Sequence[Declared], sizes: Mapping[str, int]) -> tuple[Axes, ...]:
    return tuple(axes_of(entry.shape[0][0], sizes) if entry.shape else None for entry in entries)


def _each(change: Any, values: Any, axes: tuple[Axes, ...]) -> Any:
    """Change a tensor, or each of a tuple, that is a matrix."""
    several = type(values) in (tuple, list)
    row: Sequence[Any] = values if several else (values,)
    if not any(axes) or len(row) != len(axes):
        return values
    changed = [change(v, a) if a and isinstance(v, Tensor) else v for v, a in zip(row, axes)]
    return tuple(changed) if several else changed[0]


def _flat(value: Tensor, axes: tuple[int, int]) -> Tensor:
    return value.flatten(-2) if value.shape[-2:] == axes else value


def _wide(value: Tensor, axes: tuple[int, int]) -> Tensor:
    return value.unflatten(-1, axes)
