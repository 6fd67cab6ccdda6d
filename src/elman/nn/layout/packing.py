"""Sequences of several lengths: PackedSequence in and out, padded batches with lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.utils.rnn import PackedSequence

from elman.checks import shown
from elman.engines.packed_rows import Packed, packed_of
from elman.errors import InputError, ShapeError
from elman.nn.autograd.transforms import transform_reason
from elman.nn.layout.dense import check_dense


class _MoveRows(Function):
    """Gather rows by index, or scatter them into zeros; each is the other's transpose."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, count: int | None) -> Tensor:
        ctx.save_for_backward(index)
        ctx.back = len(rows) if count is None else None
        if count is None:
            return rows.index_select(0, index)
        return rows.new_zeros(count, *rows.shape[1:]).index_copy_(0, index, rows)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:  # type: ignore[override]
        return _MoveRows.apply(d, *ctx.saved_tensors, ctx.back), None, None


def _move_rows(rows: Tensor, index: Tensor, count: int | None = None) -> Tensor:
    if transform_reason((rows,)) is None:
        return _MoveRows.apply(rows, index, count)
    if count is None:
        return rows.index_select(0, index)
    return rows.new_zeros(count, *rows.shape[1:]).index_copy(0, index, rows)


@dataclass(frozen=True)
class Rows:
    """Sequences of several lengths as packed rows: step by step, longest sequence first.

    Attributes:
        packed: sizes of the steps.
        like: a PackedSequence of these sizes and this order.
        index [N]: indices of the rows in a flat padded batch; None for a PackedSequence.
        steps: T of the padded batch.
    """

    packed: Packed
    like: PackedSequence
    index: Tensor | None = None
    steps: int = 0

    @staticmethod
    def of(packed: PackedSequence) -> Rows:
        """The rows of a PackedSequence."""
        return Rows(packed_of(tuple(packed.batch_sizes.tolist())), packed)

    @staticmethod
    def of_lengths(lengths: Tensor, steps: int, device: torch.device) -> Rows:
        """The rows of a padded batch [T, B, ...] of sequences of these lengths [B] (on the CPU)."""
        counts, order = torch.sort(lengths, descending=True, stable=True)
        inside = torch.arange(int(counts[0])).unsqueeze(1) < counts
        t, place = inside.nonzero(as_tuple=True)
        index = (t * len(counts) + order[place]).to(device)
        order = order.to(device)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(counts), device=device))
        like = PackedSequence(index, inside.sum(1), order, back)
        return Rows(packed_of(tuple(like.batch_sizes.tolist())), like, index, steps)

    @property
    def batch(self) -> int:
        """B."""
        return self.packed.batch

    def sort(self, value: Tensor, axis: int) -> Tensor:
        """Values of sequences in the order of the rows."""
        order = self.like.sorted_indices
        return value if order is None else value.index_select(axis, order)

    def unsort(self, value: Tensor, axis: int) -> Tensor:
        """Values of sequences in the caller's order."""
        order = self.like.unsorted_indices
        return value if order is None else value.index_select(axis, order)

    def pack(self, x: Tensor) -> Tensor:
        """The rows [N, ...] of a padded batch [T, B, ...]."""
        index, by_sample = self.index, x.transpose(0, 1)
        assert index is not None, "these are rows of a padded batch"
        if by_sample.is_contiguous():  # x is a view of [B, T, ...]: indices change, not the layout
            steps, batch = x.shape[:2]
            x, index = by_sample, index % batch * steps + index // batch
        return _move_rows(x.flatten(0, 1), index)

    def unpack(self, rows: Tensor) -> Any:
        """Rows in the caller's form: a PackedSequence, or a padded batch [T, B, ...] with zeros as
        padding."""
        like = self.like
        if self.index is None:
            return PackedSequence(
                rows, like.batch_sizes, like.sorted_indices, like.unsorted_indices
            )
        sizes = (self.steps, self.batch)
        return _move_rows(rows, self.index, sizes[0] * sizes[1]).unflatten(0, sizes)


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_lengths(lengths: Any, batch: int, steps: int) -> Tensor:
    """Check lengths, and convert them to int64 on the CPU.

    Raises:
        InputError, ShapeError: they are not whole numbers between 1 and T, one per sequence.
    """
    try:
        counts = torch.as_tensor(lengths).cpu()
    except (TypeError, ValueError, RuntimeError, OverflowError, NotImplementedError):
        problem = f"lengths must be whole numbers, one per sequence, got {shown(lengths)}"
        raise InputError(problem, "lengths=[5, 3, 8], or a tensor of them") from None
    check_dense(counts, "lengths")
    if counts.is_meta:
        raise InputError("lengths are on meta, where they have no values")
    if not counts.numel():
        counts = counts.long()  # of an empty list, too
    if counts.dtype not in _INTEGERS:
        raise InputError(f"lengths must be integers, not {counts.dtype}")
    if counts.shape != (batch,):
        message = f"lengths must be [{batch}], one per sequence, got {list(counts.shape)}"
        hint = (
            f"x is {batch} sequences of {steps} steps here: batch_first= says which axis is which"
        )
        raise ShapeError(message, hint if counts.shape == (steps,) else "")
    if batch and not (int(counts.min()) >= 1 and int(counts.max()) <= steps):
        raise InputError(
            f"lengths must lie between 1 and T = {steps}, got {int(counts.min())} to "
            f"{int(counts.max())}"
        )
    return counts.long()
