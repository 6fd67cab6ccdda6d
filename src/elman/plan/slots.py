"""Slot allocation: projections, tape and gate gradients share columns of one workspace.

A slot is one gate-block-wide column with a row per (t, b). A value may follow another in it once
the last reader is done, or when that reader is the same straight-line code at the same unit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from elman.ir.graph import Node, walk
from elman.ir.types import GateBlock


@dataclass(frozen=True)
class Life:
    """Lifetime of a value, as event numbers (phase · 1000 + segment).

    ``last_full``: at the last event all its units are read, not only the reader's own. ``summed``:
    the loop that stores it runs over other units, namely those of the matrix that it sums.
    """

    start: int
    last: int
    last_full: bool
    summed: bool = False

    def before(self, later: Life) -> bool:
        """Whether ``later`` may overwrite this value in place."""
        # not where one segment stores both: the order of its stores does not follow lifetimes
        same_code = self.start < later.start and not (self.last_full or later.summed)
        return self.last < later.start or (self.last == later.start and same_code)


@dataclass
class Slot:
    """A column during allocation: its gate block (None: a scalar), and the lifetimes assigned to
    it."""

    gate_block: GateBlock | None
    lives: list[tuple[Node, Life]] = field(default_factory=list[tuple[Node, Life]])

    def fits(self, value: Node, life: Life) -> bool:
        """Whether ``value`` can share the slot with the values already in it."""
        return gate_block_of(value) == self.gate_block and all(
            resident.before(life) or life.before(resident) for _, resident in self.lives
        )

    def last_before(self, life: Life) -> Node | None:
        """The last value of the slot before a life begins."""
        before = [(each.start, n) for n, (_, each) in enumerate(self.lives) if each.before(life)]
        return self.lives[max(before)[1]][0] if before else None


def gate_block_of(value: Node) -> GateBlock | None:
    """The gate block of a vector; None for a scalar."""
    return value.shape[0][0] if value.shape else None


def assign(
    values: Iterable[Node], lives: dict[Node, Life], shared: list[Slot], private: list[Slot]
) -> dict[Node, tuple[bool, int]]:
    """Put each value into a slot of ``shared`` that fits, else of ``private``, else into a new one.

    Of several slots that fit, the first whose last value is an operand of the new one, else the
    first.

    Returns:
        per value, (whether the slot is one of ``shared``, its index); both lists are filled in
        place.
    """
    placed: dict[Node, tuple[bool, int]] = {}
    for value in values:
        life = lives[value]
        places = [(True, i, slot) for i, slot in enumerate(shared) if slot.fits(value, life)]
        places += [(False, i, slot) for i, slot in enumerate(private) if slot.fits(value, life)]
        if not places:
            private.append(Slot(gate_block_of(value)))
            places = [(False, len(private) - 1, private[-1])]
        if len(places) > 1:
            # so that a head overwrites its own values only, and heads can be rolled into a loop
            below = {*walk([value])}
            places.sort(key=lambda place: place[2].last_before(life) not in below)
        is_shared, index, slot = places[0]
        slot.lives.append((value, life))
        placed[value] = (is_shared, index)
    return placed
