"""Layouts of the arguments of a call: conversion to the inner layout and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.errors import ShapeError
from elman.frontend.cell import Cell
from elman.frontend.signature import Declared
from elman.ir.types import axes_of
from elman.nn.layout.packing import Rows, check_lengths

Named = tuple[str, tuple[int, ...]]  # a value's name, and its sizes without batch and time


class Layout(NamedTuple):
    """Layout of the arguments of a call; the inner layout is [T, B, n], packed [N, n].

    Attributes:
        batched: whether there is an axis of samples.
        batch_first: whether it comes before that of time.
        packed: whether sequences are PackedSequences.
        padded: whether they are a padded batch, with ``lengths``.
    """

    batched: bool = True
    batch_first: bool = False
    packed: bool = False
    padded: bool = False

    def time_major(self, value: Tensor) -> Tensor:
        """A value of each step [T, B, ...]."""
        if not self.batched:
            return value.unsqueeze(1)
        return value.transpose(0, 1) if self.batch_first else value

    def rows(self, x: Any, lengths: Any) -> Rows | None:
        """The packed rows of a call; None if every sequence has T steps.

        Args:
            x: the first input.
            lengths: of a padded batch.

        Raises:
            InputError, ShapeError: lengths are not whole numbers between 1 and T, one per sequence.
        """
        if self.packed:
            return Rows.of(x)
        if not self.padded:
            return None
        steps, batch = x.shape[1::-1] if self.batch_first else x.shape[:2]
        return Rows.of_lengths(check_lengths(lengths, batch, steps), steps, x.device)

    def enter_steps(self, value: Any, rows: Rows | None) -> Tensor:
        """A value of each step in the inner layout.

        Raises:
            ShapeError: it is packed with other lengths than x.
        """
        if rows is None:
            return self.time_major(value)
        if not self.packed:
            return rows.pack(self.time_major(value))
        sizes, like = value.batch_sizes, rows.like.batch_sizes
        if len(value.data) != rows.packed.rows or not (sizes is like or torch.equal(sizes, like)):
            raise ShapeError("the packed arguments of a call differ in their lengths")
        return value.data

    def enter_state(self, value: Tensor, rows: Rows | None) -> Tensor:
        """A state [lead, B, ...], in the order of packed rows."""
        if rows is not None:
            return rows.sort(value, 1)
        return value if self.batched else value.unsqueeze(1)

    def enter_static(self, value: Tensor, rows: Rows | None) -> Tensor:
        """A value of each sequence [B, ...]."""
        if rows is not None:
            return rows.sort(value, 0)
        return value if self.batched else value.unsqueeze(0)

    def leave_steps(self, value: Tensor, rows: Rows | None) -> Any:
        """A value of each step in the caller's layout."""
        if rows is not None:
            value = rows.unpack(value)
            if self.packed:
                return value
        elif not self.batched:
            return value.squeeze(1)
        return value.transpose(0, 1) if self.batch_first else value

    def leave_states(self, values: Sequence[Tensor], rows: Rows | None) -> tuple[Tensor, ...]:
        """States in the caller's layout."""
        if rows is not None:
            return tuple([rows.unsort(value, 1) for value in values])
        return tuple(values) if self.batched else tuple([value.squeeze(1) for value in values])


def as_number(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a mask to numbers, 1 where true; return other tensors unchanged."""
    return value.to(dtype) if value.dtype is torch.bool else value


def device_type(value: Any) -> str:
    """torch's device type of a tensor, of packed rows, or of the first of several."""
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value.device.type if isinstance(value, Tensor) else "cpu"


def cast_to(value: Any, dtype: torch.dtype) -> Any:
    """Cast tensors as autocast does: all floating-point ones but float64, also in lists and
    tuples."""
    if isinstance(value, Tensor):
        wide = value.dtype is torch.float64 or not value.is_floating_point()
        return value if wide else value.to(dtype)
    if isinstance(value, PackedSequence):
        return value._replace(data=cast_to(value.data, dtype))
    if isinstance(value, (tuple, list)):
        return type(value)([cast_to(part, dtype) for part in value])
    return value


class StateForm(NamedTuple):
    """Layout of the states of all layers and directions of a module.

    Inside the module they are a tuple of tensors. If all layers have the same states, it has a
    tensor [layers · directions, B, n] for each state, which is the caller's form, too. Otherwise it
    has a tensor [1, B, n] for each state of each layer and direction; the caller's form is then a
    list with a tensor [B, n] for each layer and direction, or a tuple if the cell has several
    states.

    Attributes:
        counts: number of states of each layer and direction.
        alike: whether all have the same states.
    """

    counts: tuple[int, ...]
    alike: bool

    @staticmethod
    def of(by_layer: Sequence[Sequence[Named]]) -> StateForm:
        """The form of these states of each layer and direction."""
        return StateForm(
            tuple(map(len, by_layer)), all(states == by_layer[0] for states in by_layer)
        )

    def places(self, index: int) -> list[tuple[int, int]]:
        """Indices of the tensor and of the row of each state of a layer and direction."""
        count = self.counts[index]
        if self.alike:
            return [(k, index) for k in range(count)]
        before = sum(self.counts[:index])
        return [(before + k, 0) for k in range(count)]

    def rows(self, arrays: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """The states [B, n] of each layer and direction.

        Args:
            arrays: [layers · directions, B, n] each, or [1, B, n].
        """
        if self.alike:
            return list(zip(*[array.unbind(0) for array in arrays]))
        return self._cut([array.squeeze(0) for array in arrays])

    def join(self, ends: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """Last states, in the layout of the initial ones.

        If layers have the same states they are stacked, even for one layer: a view does not allow
        ``detach_()``.

        Args:
            ends: of each group, all states [B, n], layer by layer.
        """
        flat = [value for group in ends for value in group]
        if not self.alike:
            return tuple([value.unsqueeze(0) for value in flat])
        count = self.counts[0]
        return tuple([torch.stack(flat[k::count]) for k in range(count)])

    def arrays(self, state: Any) -> list[Tensor]:
        """The inverse of :meth:`nest`."""
        if self.alike:
            return list(state) if isinstance(state, (tuple, list)) else [state]
        return [value.unsqueeze(0) for value in self.flatten(state) or ()]

    def flatten(self, state: Any) -> list[Any] | None:
        """All states of a caller's list, one after another; None if it has another form."""
        if not isinstance(state, (list, tuple)) or len(state) != len(self.counts):
            return None
        groups = [states if isinstance(states, (list, tuple)) else (states,) for states in state]
        if tuple(map(len, groups)) != self.counts:
            return None
        return [value for states in groups for value in states]

    def nest(self, arrays: Sequence[Tensor]) -> Any:
        """States in the caller's form: a tensor, a tuple of several, or a list of these.

        Args:
            arrays: see :meth:`rows`.
        """
        if self.alike:
            return unwrap_single(arrays)
        return [
            unwrap_single(states) for states in self._cut([a.squeeze(0).clone() for a in arrays])
        ]

    def _cut(self, flat: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        rows: list[tuple[Tensor, ...]] = []
        at = 0
        for count in self.counts:
            rows.append(tuple(flat[at : at + count]))
            at += count
        return rows


def unwrap_single(values: Sequence[Any]) -> Any:
    """The single value, or a tuple of several."""
    return values[0] if len(values) == 1 else tuple(values)


NamedAxes = tuple[str, tuple[int, int] | None]


class MatrixShapes(NamedTuple):
    """Names of inputs, states and outputs, with rows and columns of those that are matrices.

    Attributes:
        inputs, static, states, outputs: in declared order; states of layers with different states
            layer by layer.
        counts: numbers of states of each layer and direction, if layers have different states.
        sequences: the last layer's states.
        directions: number of directions, whose outputs and sequences of states are joined: two
            matrices [K, V] to one [K, 2V].
    """

    inputs: tuple[NamedAxes, ...]
    static: tuple[NamedAxes, ...]
    states: tuple[NamedAxes, ...]
    outputs: tuple[NamedAxes, ...]
    counts: tuple[int, ...]
    sequences: tuple[NamedAxes, ...]
    directions: int

    @staticmethod
    def of(
        cells: Sequence[tuple[Cell, Mapping[str, int]]], *, alike: bool, bidirectional: bool
    ) -> MatrixShapes | None:
        """The matrices of the layers of a module; None if there are none.

        Args:
            cells: the cell of each layer and direction, and the sizes of its dims.
            alike: whether all layers have the same states.
            bidirectional: whether outputs of two directions are joined.
        """
        by_layer = [_named_axes((cell.states, sizes)) for cell, sizes in cells]
        (first, sizes), (last, last_sizes) = cells[0], cells[-1]
        outputs = last.outputs or last.states[:1]
        further = _named_axes(*[(cell.inputs[1:], sizes) for cell, sizes in cells])
        shapes = MatrixShapes(
            (*_named_axes((first.inputs[:1], sizes)), *further),
            _named_axes(*[(cell.static, sizes) for cell, sizes in cells]),
            by_layer[0] if alike else tuple([entry for states in by_layer for entry in states]),
            _named_axes((outputs, last_sizes)),
            () if alike else tuple(map(len, by_layer)),
            by_layer[-1],
            1 + bidirectional,
        )
        named = (*shapes.inputs, *shapes.static, *shapes.states, *shapes.outputs)
        return shapes if any(axes for _, axes in named) else None

    def flatten(self, x: Any, state: Any, options: dict[str, Any]) -> tuple[Any, Any]:
        """Inputs and states with rows of K · V units; static inputs are replaced in the options.

        Raises:
            ShapeError: a matrix has other rows or columns.
        """
        if "static" in options:
            options["static"] = _map_axes(_flat, options["static"], self.static)
        return _map_axes(_flat, x, self.inputs), self._map_states(_flat, state)

    def restore(self, results: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results of a call with matrices [.., K, V]: outputs, sequences of states if the call
        returns them, last states."""
        output, *sequences, last = results
        wide = _wide if self.directions == 1 else _wide_of_two
        return (
            _map_axes(wide, output, self.outputs),
            *[_map_axes(wide, value, self.sequences) for value in sequences],
            self._map_states(_wide, last),
        )

    def _map_states(self, change: Any, state: Any) -> Any:
        """Change the matrices among states, which are in the caller's form (:class:`StateForm`)."""
        if not self.counts:
            return _map_axes(change, state, self.states)
        if not isinstance(state, (tuple, list)) or len(state) != len(self.counts):
            return state  # no state, or a wrong one, which the signature refuses
        ends = accumulate(self.counts)
        entries = [self.states[end - count : end] for count, end in zip(self.counts, ends)]
        return [_map_axes(change, *layer) for layer in zip(state, entries, strict=True)]


def _named_axes(*layers: tuple[Sequence[Declared], Mapping[str, int]]) -> tuple[NamedAxes, ...]:
    """Entries of all layers, one for each name."""
    named: dict[str, tuple[int, int] | None] = {}
    for entries, sizes in layers:
        for entry in entries:
            named[entry.name] = axes_of(entry.shape[0][0], sizes) if entry.shape else None
    return tuple(named.items())


def _map_axes(change: Any, values: Any, entries: tuple[NamedAxes, ...]) -> Any:
    """Change a tensor, or each of a tuple, that is a matrix; a PackedSequence by its data."""
    several = type(values) in (tuple, list)
    row: Sequence[Any] = values if several else (values,)
    if not any(axes for _, axes in entries) or len(row) != len(entries):
        return values

    def apply(value: Any, name: str, axes: tuple[int, int] | None) -> Any:
        if axes is None:
            return value
        if isinstance(value, PackedSequence):
            return PackedSequence(change(value.data, name, axes), *value[1:])
        return change(value, name, axes) if isinstance(value, Tensor) else value

    new = [apply(value, *entry) for value, entry in zip(row, entries)]
    return tuple(new) if several else new[0]


def _flat(value: Tensor, name: str, axes: tuple[int, int]) -> Tensor:
    if value.shape[-2:] != axes:
        K, V = axes
        raise ShapeError(f"{name} is a matrix [{K}, {V}] of each sample, got {[*value.shape]}")
    return value.flatten(-2)


def _wide(value: Tensor, name: str, axes: tuple[int, int]) -> Tensor:
    return value.unflatten(-1, axes)


def _wide_of_two(value: Tensor, name: str, axes: tuple[int, int]) -> Tensor:
    return value.unflatten(-1, (2, *axes)).movedim(-3, -2).flatten(-2)
