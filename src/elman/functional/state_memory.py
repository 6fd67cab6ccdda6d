"""Memory of a cache's states that a recording writes to, and that the next text takes over.

A recording knows addresses. The states of a cache and those that the recording has are two tensors
of the same memory, so that it can be seen when the cache is gone and nothing of it is in use. The
states of the next cache are then moved to where the recording has them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from elman.torch_internals import COUNTS_USERS, count_users


class StateMemory:
    """The memory of one layer's states.

    Args:
        states: of the cache that it belongs to now.

    Attributes:
        own: tensors of the same memory, for a recording.
    """

    def __init__(self, states: Sequence[Tensor]) -> None:
        self._may_move = COUNTS_USERS and all(map(_is_alone, states))
        self.own = [state.detach() for state in states]
        self._users = list[int]()
        self._lent = list[ReferenceType[Tensor]]()

    def lend(self, states: Sequence[Tensor]) -> None:
        """Note what a cache without a further user looks like, after the recording was made."""
        self._lent = [*map(ref, states)]
        self._users = [*map(_users, self.own)] if self._may_move else []

    def take_over(self, states: Sequence[Tensor]) -> bool:
        """Move the states of another cache here. Returns whether nothing else is in the way."""
        pairs = [*zip(self.own, states)]
        if (
            not self._may_move
            or len(states) != len(self.own)
            or any(each() is not None for each in self._lent)
            or any(_users(a) + 1 != n for a, n in zip(self.own, self._users, strict=True))
            or not all(_is_alone(b) and _are_alike(a, b) for a, b in pairs)
        ):
            return False
        with torch.no_grad():
            for own, state in pairs:
                own.copy_(state)
                state.set_(own)  # type: ignore[arg-type]  # its overloads lack a tensor alone
        self._lent = [*map(ref, states)]
        return True


def _users(state: Tensor) -> int:
    """Count the tensors, and the users of the storage's Python object, of a state's memory."""
    storage = state.untyped_storage()
    return count_users(storage) + sys.getrefcount(storage)


def _is_alone(state: Tensor) -> bool:
    """Return whether no other tensor has the memory of a state."""
    return (
        type(state) is Tensor
        and not state.requires_grad
        and _users(state) == _users(torch.empty(1))
    )


def _are_alike(own: Tensor, state: Tensor) -> bool:
    return (
        own.shape == state.shape
        and own.stride() == state.stride()
        and own.dtype is state.dtype
        and own.device == state.device
        and own.is_inference() == state.is_inference()
    )


@contextmanager
def exchanged(
    layer: dict[str, Any], names: Sequence[str], states: Sequence[Tensor], others: Sequence[Tensor]
) -> Iterator[None]:
    """Put other tensors in the place of a cache's states, inside of the block."""
    place = [*zip(states, others, strict=True)]
    _put(layer, names, {id(state): other for state, other in place})
    try:
        yield
    finally:
        _put(layer, names, {id(other): state for state, other in place})


def _put(layer: dict[str, Any], names: Sequence[str], instead: dict[int, Tensor]) -> None:
    for name in names:
        value = layer.get(name)
        if isinstance(value, list):
            value[:] = [instead.get(id(each), each) for each in value]
        elif isinstance(value, dict):
            value.update({key: instead.get(id(each), each) for key, each in value.items()})
        elif id(value) in instead:
            layer[name] = instead[id(value)]
