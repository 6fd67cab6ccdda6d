"""How the arguments of a call lie: from the caller's layout to the inner one, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.errors import ShapeError
from elman.nn.call.packing import Rows, checked_lengths


class Layout(NamedTuple):
    """How the arguments of a call lie; the inner layout is [T, B, n], packed [N, n].

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
        """The packed rows of a call; None where every sequence has T steps.

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
        return Rows.of_lengths(checked_lengths(lengths, batch, steps), steps, x.device)

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
        """A value of each step as the caller has it."""
        if rows is not None:
            value = rows.unpack(value)
            if self.packed:
                return value
        elif not self.batched:
            return value.squeeze(1)
        return value.transpose(0, 1) if self.batch_first else value

    def leave_states(self, values: Sequence[Tensor], rows: Rows | None) -> tuple[Tensor, ...]:
        """States as the caller has them."""
        if rows is not None:
            return tuple([rows.unsort(value, 1) for value in values])
        return tuple(values) if self.batched else tuple([value.squeeze(1) for value in values])


def as_number(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A mask as numbers, 1 where true; other tensors as they are."""
    return value.to(dtype) if value.dtype is torch.bool and dtype is not None else value
