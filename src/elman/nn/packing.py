"""Sequences of several lengths: PackedSequence in and out, padded batches with lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from elman.engines.ragged import Ragged, ragged_of
from elman.errors import InputError, ShapeError


@dataclass(frozen=True)
class Packing:
    """How a PackedSequence lies: rows longest sequence first, states in the caller's order."""

    ragged: Ragged
    like: PackedSequence

    @staticmethod
    def of(packed: PackedSequence) -> Packing:
        """The layout of a packed batch."""
        return Packing(ragged_of(tuple(packed.batch_sizes.tolist())), packed)

    def sorted(self, state: Tensor, axis: int) -> Tensor:
        """A state in the order of the rows."""
        order = self.like.sorted_indices
        return state if order is None else state.index_select(axis, order)

    def unsorted(self, state: Tensor, axis: int) -> Tensor:
        """A state in the caller's order."""
        order = self.like.unsorted_indices
        return state if order is None else state.index_select(axis, order)

    def wrapped(self, rows: Tensor) -> PackedSequence:
        """Output rows as torch hands them out."""
        like = self.like
        return PackedSequence(rows, like.batch_sizes, like.sorted_indices, like.unsorted_indices)


def with_lengths(
    forward: Callable[[Any, Any], tuple[PackedSequence, Any]],
    x: Any,
    state: Any,
    lengths: Any,
    batch_first: bool,
) -> tuple[Tensor, Any]:
    """Run a module on padded sequences of which each has its own length.

    Args:
        forward: the module's, for packed sequences.
        x: [T, B, ...] (or [B, T, ...]), or a tuple of such.
        state: as the module takes it.
        lengths [B]: steps of each sequence, in any order.
        batch_first: whether the axes of x begin with the batch.

    Returns:
        The output, zero behind each sequence's end, and the states after each own last step.

    Raises:
        InputError, ShapeError: lengths are no whole numbers between 1 and T, one per sequence.
    """
    several = isinstance(x, (tuple, list)) and not isinstance(x, PackedSequence)
    given: Sequence[Any] = x if several else (x,)
    for part in given:
        if not isinstance(part, Tensor):
            raise InputError(f"lengths go with padded tensors, not with a {type(part).__name__}")
        if part.dim() < 2:
            raise ShapeError("lengths go with a batch of sequences; this input has none")
    parts: tuple[Tensor, ...] = tuple(given)
    batch, steps = parts[0].shape[:2] if batch_first else parts[0].shape[1::-1]
    told = _checked(lengths, batch, steps)
    packed = tuple(
        pack_padded_sequence(part, told, batch_first=batch_first, enforce_sorted=False)
        for part in parts
    )
    output, ends = forward(packed if several else packed[0], state)
    padded, _ = pad_packed_sequence(output, batch_first=batch_first, total_length=steps)
    return padded, ends


def _checked(lengths: Any, batch: int, steps: int) -> Tensor:
    told = torch.as_tensor(lengths).cpu()
    if told.dtype.is_floating_point or told.dtype.is_complex or told.dtype == torch.bool:
        raise InputError(f"lengths are whole numbers, not {told.dtype}")
    if told.shape != (batch,):
        raise ShapeError(f"lengths must be [{batch}], one per sequence, got {list(told.shape)}")
    if batch and not (int(told.min()) >= 1 and int(told.max()) <= steps):
        raise InputError(
            f"lengths lie between 1 and T = {steps}, got {int(told.min())} to {int(told.max())}"
        )
    return told.long()
