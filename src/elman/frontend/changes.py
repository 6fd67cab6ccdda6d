"""Options of modules that modify how any cell reads and writes its states.

A change wraps the states that a formula is traced with, and the next states that it returns. The
result is an ordinary cell: drawn, explained, saved by name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from elman.checks import check_choice, check_share, is_number, shown
from elman.errors import InputError
from elman.frontend.draws import Per, dropout, zoneout
from elman.frontend.spikes import clip_gradient
from elman.frontend.trace import Tracer
from elman.integers.rewrite import Bits, Range, rewrite, values_of
from elman.ir.graph import Graph, Node, Rate, walk, with_args


def read_by_products(roots: Sequence[Node], instead: Mapping[Node, Node]) -> list[Node]:
    """Replace values where products with weight matrices read them.

    rewrite, with h -> d:  R @ (r * h) + h  ->  R @ (r * d) + h

    Products nested in operands of other products read the replacements too.

    Args:
        roots: what is computed.
        instead: replacements, by value.
    """
    plain: dict[Node, Node] = {}  # as the formula reads it
    inside: dict[Node, Node] = {}  # as a product reads it
    for old in walk(roots, stop=lambda value: value in instead):
        if old in instead:
            plain[old], inside[old] = old, instead[old]
        elif old.op == "matmul" and old.args[1].rate >= Rate.STATE:
            matrix, vector = old.args
            plain[old] = inside[old] = with_args(old, (plain[matrix], inside[vector]))
        else:
            args, substituted = ([way[arg] for arg in old.args] for way in (plain, inside))
            plain[old] = with_args(old, tuple(args))
            inside[old] = plain[old] if args == substituted else with_args(old, tuple(substituted))
    return [plain[root] for root in roots]


Data = tuple[str, Mapping[str, Any]]  # a change as names and numbers, for files


@dataclass(frozen=True)
class Change:
    """Base of all changes: frozen, with JSON-able fields."""

    def read(self, name: str, state: Tracer) -> Tracer:
        """The value that the formula reads for a state.

        Args:
            name: of the state.
            state [n]: behind the step before.
        """
        return state

    def written(self, name: str, old: Tracer, new: Tracer) -> Tracer:
        """The next value of a state.

        Args:
            name: of the state.
            old [n]: behind the step before.
            new [n]: what the formula returns for it.
        """
        return new

    def multiplied(self, name: str, state: Tracer) -> Tracer:
        """The value that products with weight matrices read for a state.

        Args:
            name: of the state.
            state [n]: as the formula reads it.
        """
        return state

    def rewritten(self, graph: Graph) -> Graph:
        """The whole formula, traced with all changes."""
        return graph

    def check(self, cell: str, states: Collection[str]) -> None:
        """Raise InputError if a cell with these states cannot have the change."""

    def of_states(self, states: Collection[str]) -> Change:
        """The change restricted to these states."""
        return self

    @property
    def data(self) -> Data:
        """Name and fields, from which :func:`change_of` restores it."""
        return type(self).__name__, asdict(self)


@dataclass(frozen=True)
class ClippedGradient(Change):
    """Clip the gradient of a state to [-limit, limit] in each step. Raises InputError: the limit is
    not a positive number."""

    limit: float

    def __post_init__(self) -> None:
        if not (is_number(self.limit) and self.limit > 0):
            raise InputError(
                f"clip_gradient must be a positive number, got {shown(self.limit)}",
                "clip_gradient=1.0 holds every component within [-1, 1], in each step",
            )

    def read(self, name: str, state: Tracer) -> Tracer:
        return clip_gradient(state, self.limit)


@dataclass(frozen=True)
class Zoneout(Change):
    """Units of a state keep their old value with a probability.

    Attributes:
        share: of all states, or (name, share) of each that has one.

    Raises:
        InputError: a share is not a number in [0, 1].
    """

    share: float | tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        if isinstance(self.share, (tuple, list)):
            object.__setattr__(self, "share", tuple([(name, p) for name, p in self.share]))
        for share in self._shares().values():
            check_share("zoneout", share)

    def _shares(self) -> dict[str, float]:
        """Shares by state; the key "" is for all states."""
        return dict(self.share) if isinstance(self.share, tuple) else {"": self.share}

    def check(self, cell: str, states: Collection[str]) -> None:
        unknown = sorted(map(str, self._shares().keys() - {*states, ""}))
        if unknown:
            names, hint = ", ".join(states), ", ".join(f"{name!r}: 0.1" for name in states)
            raise InputError(
                f"zoneout: {cell} has no state {unknown[0]!r} (its states: {names})",
                f"zoneout={{{hint}}}",
            )

    def of_states(self, states: Collection[str]) -> Change:
        if not isinstance(self.share, tuple):
            return self
        return Zoneout(tuple([(name, share) for name, share in self.share if name in states]))

    def written(self, name: str, old: Tracer, new: Tracer) -> Tracer:
        shares = self._shares()
        share = shares.get(name, shares.get("", 0.0))
        return zoneout(new, old, share) if share else new


@dataclass(frozen=True)
class RecurrentDropout(Change):
    """Units of a state are dropped where a weight matrix multiplies them.

    Attributes:
        share: of the units.
        per: how often they are drawn anew, ``sequence`` or ``step``.

    Raises:
        InputError: the share is no number in [0, 1], or there is no such ``per``.
    """

    share: float
    per: Per = "sequence"

    def __post_init__(self) -> None:
        check_share("recurrent_dropout", self.share)
        check_choice("recurrent_dropout_per", self.per, ("sequence", "step"))

    def multiplied(self, name: str, state: Tracer) -> Tracer:
        return dropout(state, self.share, self.per)


@dataclass(frozen=True)
class Integers(Change):
    """Every value is a whole number times a power of two (:mod:`elman.integers.rewrite`).

    Attributes:
        weights, operands, states: see :class:`elman.integers.rewrite.Bits`.
        ranges: of :func:`elman.integers.rewrite.values_of` the formula without this change.
        sizes: of the dims, by name.

    Raises:
        InputError: the ranges are not those of the formula, or not pairs of finite numbers.
    """

    weights: int
    operands: int
    states: int
    ranges: tuple[Range, ...]
    sizes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple([(name, size) for name, size in self.sizes]))
        pairs = tuple([(float(low), float(high)) for low, high in self.ranges])
        if not all(-math.inf < low <= high < math.inf for low, high in pairs):
            raise InputError("a range is two finite numbers, the smaller one first")
        object.__setattr__(self, "ranges", pairs)

    def rewritten(self, graph: Graph) -> Graph:
        count = len(values_of(graph))
        if count != len(self.ranges):
            raise InputError(
                f"there are ranges of {len(self.ranges)} values, and the formula has {count}"
            )
        bits = Bits(self.weights, self.operands, self.states)
        return rewrite(graph, self.ranges, bits, dict(self.sizes))


_ALL = (ClippedGradient, Zoneout, RecurrentDropout, Integers)
CHANGES: dict[str, type[Change]] = {change.__name__: change for change in _ALL}


def change_of(data: Data) -> Change:
    """Restore a change from its data. Raises InputError: there is none."""
    try:
        name, fields = data
        return CHANGES[name](**fields)
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        message = f"a change is a name and its numbers, not {shown(data)}"
        raise InputError(message, '("Zoneout", {"share": 0.1})') from None
