"""How the states of all layers lie: joined where layers are alike, else layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Named = tuple[str, tuple[int, ...]]  # a value's name, and its sizes without batch and time


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
