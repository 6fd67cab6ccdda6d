"""States read and written otherwise than a formula says: options of modules for any cell.

A change wraps what a formula is given for its states, and what it returns for them, while it is
traced. A cell with changes is a cell like any other: drawn, explained, saved by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from elman.errors import InputError, diagnostic
from elman.frontend.spikes import clip_gradient
from elman.frontend.trace import Tracer

Data = tuple[str, Mapping[str, Any]]  # a change as names and numbers, for files


@dataclass(frozen=True)
class Change:
    """One change; frozen, so that equal ones are the same, and of fields that JSON has."""

    def read(self, name: str, state: Tracer) -> Tracer:
        """What the formula is given for a state.

        Args:
            name: of the state.
            state [n]: behind the step before.
        """
        return state

    def written(self, name: str, old: Tracer, new: Tracer) -> Tracer:
        """What the next value of a state is.

        Args:
            name: of the state.
            old [n]: behind the step before.
            new [n]: what the formula returns for it.
        """
        return new

    @property
    def data(self) -> Data:
        """Of what :func:`change_of` makes it again."""
        return type(self).__name__, asdict(self)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class ClippedGradient(Change):
    """What flows from a step back into the state before it is held within [-limit, limit].

    Raises:
        InputError: the limit is no positive number.
    """

    limit: float

    def __post_init__(self) -> None:
        if not (_is_number(self.limit) and self.limit > 0):
            raise InputError(
                diagnostic(
                    f"clip_gradient is a positive number, got {self.limit!r}",
                    [],
                    "clip_gradient=1.0 holds every component within [-1, 1], in each step",
                )
            )

    def read(self, name: str, state: Tracer) -> Tracer:
        """See :meth:`Change.read`."""
        return clip_gradient(state, self.limit)


CHANGES: dict[str, type[Change]] = {change.__name__: change for change in (ClippedGradient,)}


def change_of(data: Data) -> Change:
    """The change of its data."""
    name, fields = data
    return CHANGES[name](**fields)
