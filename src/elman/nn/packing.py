"""Sequences of several lengths: PackedSequence in and out, padded batches with lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.utils.rnn import PackedSequence

from elman.engines.ragged import Ragged, ragged_of
from elman.errors import InputError, ShapeError
from elman.nn.dense import check_dense
from elman.nn.transforms import transformed


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


class _Picked(Function):
    """Rows of a sequence, each at most once, and its transpose: rows put where they came from."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = len(whole)
        return whole.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:  # type: ignore[override]
        (index,) = ctx.saved_tensors
        return _Put.apply(d, index, ctx.rows), None


class _Put(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(index)
        return rows.new_zeros(count, *rows.shape[1:]).index_copy_(0, index, rows)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:  # type: ignore[override]
        (index,) = ctx.saved_tensors
        return _Picked.apply(d, index), None, None


@dataclass(frozen=True)
class Padding:
    """Where the steps of sequences lie in a padded batch.

    Attributes:
        index [N]: places of the packed rows in the flat batch.
        like: a PackedSequence of nothing but sizes and order.
    """

    index: Tensor
    like: PackedSequence

    @staticmethod
    def of(lengths: Tensor, steps: int, batch_first: bool, device: torch.device) -> Padding:
        """The layout of lengths [B] (on the CPU)."""
        told, order = torch.sort(lengths, descending=True, stable=True)
        inside = torch.arange(int(told[0])).unsqueeze(1) < told
        t, place = inside.nonzero(as_tuple=True)
        b = order[place]
        index = b * steps + t if batch_first else t * len(told) + b
        order = order.to(device)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(told), device=device))
        sizes = inside.sum(1)
        return Padding(index.to(device), PackedSequence(index, sizes, order, back))

    def packed(self, x: Tensor) -> PackedSequence:
        """Rows of a padded batch [T, B, ...] (or [B, T, ...])."""
        _, sizes, order, back = self.like
        return PackedSequence(_picked(x.flatten(0, 1), self.index), sizes, order, back)

    def padded(self, rows: Tensor, sizes: tuple[int, int]) -> Tensor:
        """Rows in a padded batch whose first axes have these sizes; zero elsewhere."""
        return _put(rows, self.index, sizes[0] * sizes[1]).unflatten(0, sizes)


def _picked(whole: Tensor, index: Tensor) -> Tensor:
    if transformed((whole,)) is not None:
        return whole.index_select(0, index)
    return _Picked.apply(whole, index)


def _put(rows: Tensor, index: Tensor, count: int) -> Tensor:
    if transformed((rows,)) is not None:
        return rows.new_zeros(count, *rows.shape[1:]).index_copy(0, index, rows)
    return _Put.apply(rows, index, count)


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
        check_dense(part, "an input with lengths")
        if part.dim() < 2:
            raise ShapeError("lengths go with a batch of sequences; this input has none")
    parts: tuple[Tensor, ...] = tuple(given)
    batch, steps = parts[0].shape[:2] if batch_first else parts[0].shape[1::-1]
    told = checked(lengths, batch, steps)
    padding = Padding.of(told, steps, batch_first, parts[0].device)
    packed = tuple(padding.packed(part) for part in parts)
    output, ends = forward(packed if several else packed[0], state)
    sizes = (batch, steps) if batch_first else (steps, batch)
    return padding.padded(output.data, sizes), ends


def checked(lengths: Any, batch: int, steps: int) -> Tensor:
    """Lengths as int64 on the CPU; raises as :func:`with_lengths`."""
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
