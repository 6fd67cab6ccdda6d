"""How the arguments of a call lie: from the caller's layout to the inner one, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from elman.errors import ShapeError
from elman.nn.call.packing import Rows, checked_lengths

Named = tuple[str, tuple[int, ...]]  # a value's name, and its sizes without batch and time


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


def as_number(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as numbers, 1 where true; other tensors as they are."""
    return value.to(dtype) if value.dtype is torch.bool else value


def device_type(value: Any) -> str:
    """torch's device type of a tensor, of packed rows, or of the first of several."""
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    return value.device.type if isinstance(value, Tensor) else "cpu"


def cast_to(value: Any, dtype: torch.dtype) -> Any:
    """Tensors as autocast casts them: all floating-point ones but float64; in lists and tuples."""
    if isinstance(value, Tensor):
        wide = value.dtype is torch.float64 or not value.is_floating_point()
        return value if wide else value.to(dtype)
    if isinstance(value, PackedSequence):
        return value._replace(data=cast_to(value.data, dtype))
    if isinstance(value, (tuple, list)):
        return type(value)([cast_to(part, dtype) for part in value])
    return value


class StateForm(NamedTuple):
    """How the states of a module's layers and directions lie.

    Inside of the module they are a tuple of tensors. Where all layers have the same states it is
    one [layers · directions, B, n] for each state, and the caller's form too. Where not it is one
    [1, B, n] for each state of each layer and direction; the caller's form is a list then, for each
    layer and direction a tensor [B, n], or a tuple of the cell's several.

    Attributes:
        counts: states of each layer and direction.
        alike: whether all have the same.
    """

    counts: tuple[int, ...]
    alike: bool

    @staticmethod
    def of(each: Sequence[Sequence[Named]]) -> StateForm:
        """The form of these states of each layer and direction."""
        return StateForm(tuple(map(len, each)), all(states == each[0] for states in each))

    def places(self, index: int) -> list[tuple[int, int]]:
        """Where the states of a layer and direction lie: which of the tensors, which row of it."""
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

    def joined(self, ends: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """Last states, laid out as the initial ones were.

        Alike ones are stacked, even if there is one layer: a view could not be ``detach_()``-ed.

        Args:
            ends: of each group, all states [B, n] of one layer after those of the one before.
        """
        flat = [value for group in ends for value in group]
        if not self.alike:
            return tuple([value.unsqueeze(0) for value in flat])
        count = self.counts[0]
        return tuple([torch.stack(flat[k::count]) for k in range(count)])

    def arrays(self, state: Any) -> list[Tensor]:
        """States from what :meth:`closed` returned."""
        if self.alike:
            return list(state) if isinstance(state, (tuple, list)) else [state]
        return [value.unsqueeze(0) for value in self.opened(state) or ()]

    def opened(self, state: Any) -> list[Any] | None:
        """Every state that a caller's list has, one after another; None if it is no such list."""
        if not isinstance(state, (list, tuple)) or len(state) != len(self.counts):
            return None
        each = [states if isinstance(states, (list, tuple)) else (states,) for states in state]
        if tuple(map(len, each)) != self.counts:
            return None
        return [value for states in each for value in states]

    def closed(self, arrays: Sequence[Tensor]) -> Any:
        """States as the caller has them: a tensor, a tuple of several, or a list of these.

        Args:
            arrays: as of :meth:`rows`.
        """
        if self.alike:
            return one_or_all(arrays)
        return [one_or_all(states) for states in self._cut([a.squeeze(0).clone() for a in arrays])]

    def _cut(self, flat: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        rows: list[tuple[Tensor, ...]] = []
        at = 0
        for count in self.counts:
            rows.append(tuple(flat[at : at + count]))
            at += count
        return rows


def one_or_all(values: Sequence[Any]) -> Any:
    """The only one of some values, or a tuple of them."""
    return values[0] if len(values) == 1 else tuple(values)
