"""Matrices per sample at the border of a module: [.., K, V] outside, rows of K · V units inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.errors import ShapeError
from elman.frontend.cell import Cell
from elman.frontend.signature import Declared
from elman.ir.types import axes_of

NamedAxes = tuple[str, tuple[int, int] | None]


class MatrixShapes(NamedTuple):
    """Names of what a module takes and gives, with rows and columns where it is a matrix.

    Attributes:
        inputs, static, states, outputs: in declared order. What no one tensor holds, outputs of two
            directions and states of unlike layers, stays as it is inside.
    """

    inputs: tuple[NamedAxes, ...]
    static: tuple[NamedAxes, ...]
    states: tuple[NamedAxes, ...]
    outputs: tuple[NamedAxes, ...]

    @staticmethod
    def of(
        cells: Sequence[tuple[Cell, Mapping[str, int]]], *, alike: bool, bidirectional: bool
    ) -> MatrixShapes | None:
        """The matrices of the layers of a module; None if there are none.

        Args:
            cells: the cell of each layer and direction, and the sizes of its dims.
            alike: whether all have the same states.
            bidirectional: whether outputs of two directions are joined.
        """
        (first, sizes), (last, last_sizes) = cells[0], cells[-1]
        outputs = last.outputs or last.states[:1]
        shapes = MatrixShapes(
            _named_axes(first.inputs, sizes),
            _named_axes(first.static, sizes),
            _named_axes(first.states, sizes) if alike else (),
            () if bidirectional else _named_axes(outputs, last_sizes),
        )
        return shapes if any(axes for group in shapes for _, axes in group) else None

    def flatten(self, x: Any, state: Any, options: dict[str, Any]) -> tuple[Any, Any]:
        """Inputs and states with rows of K · V units; static inputs are replaced in the options.

        Raises:
            ShapeError: a matrix has other rows or columns.
        """
        if "static" in options:
            options["static"] = _each(_flat, options["static"], self.static)
        return _each(_flat, x, self.inputs), _each(_flat, state, self.states)

    def restore(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results of a call with matrices [.., K, V]: outputs, sequences of states if they were
        asked for, last states."""
        output, *sequences, last = results
        wide = [_each(_wide, value, self.states if self.outputs else ()) for value in sequences]
        return _each(_wide, output, self.outputs), *wide, _each(_wide, last, self.states)


def _named_axes(entries: Sequence[Declared], sizes: Mapping[str, int]) -> tuple[NamedAxes, ...]:
    return tuple(
        (entry.name, axes_of(entry.shape[0][0], sizes) if entry.shape else None)
        for entry in entries
    )


def _each(change: Any, values: Any, entries: tuple[NamedAxes, ...]) -> Any:
    """Change a tensor, or each of a tuple, that is a matrix; a PackedSequence by its data."""
    several = type(values) in (tuple, list)
    row: Sequence[Any] = values if several else (values,)
    if not any(axes for _, axes in entries) or len(row) != len(entries):
        return values

    def changed(value: Any, name: str, axes: tuple[int, int] | None) -> Any:
        if axes is None:
            return value
        if isinstance(value, PackedSequence):
            return PackedSequence(change(value.data, name, axes), *value[1:])
        return change(value, name, axes) if isinstance(value, Tensor) else value

    new = [changed(value, *entry) for value, entry in zip(row, entries)]
    return tuple(new) if several else new[0]


def _flat(value: Tensor, name: str, axes: tuple[int, int]) -> Tensor:
    if value.shape[-2:] != axes:
        K, V = axes
        raise ShapeError(f"{name} is a matrix [{K}, {V}] of each sample, got {[*value.shape]}")
    return value.flatten(-2)


def _wide(value: Tensor, name: str, axes: tuple[int, int]) -> Tensor:
    return value.unflatten(-1, axes)
