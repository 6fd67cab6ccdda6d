"""Options of a call as data: each changes the cell's step, and adds arguments to the call.

An option is a file: a :class:`Rule` that rewrites the step (forward, backward, every engine and
every derivative follow from that), and an :class:`Option` that gives one call its further inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from elman.engines.call import Call
from elman.frontend.cell import Cell
from elman.ir.graph import Graph, Node, node
from elman.ir.types import SCALAR, Shape
from elman.tuning.request import Rule

RULES: dict[str, Rule] = {}  # by the name that records have
SomeRule = TypeVar("SomeRule", bound=Rule)


def known(rule: SomeRule) -> SomeRule:
    """Let records name a rule."""
    RULES[rule.name] = rule
    return rule


def further_leaf(graph: Graph, op: str, name: str, shape: Shape = SCALAR) -> Node:
    """A leaf that a rule adds, under a name that no leaf of the step has.

    Args:
        graph: the step before.
        op: ``input`` or ``weight``.
        name: what it is called if that is free.
        shape: of its value.
    """
    taken = {leaf.name for leaf in graph.leaves}
    while name in taken:
        name += "_"
    return node(op, (), (name,), shape)


class Option(ABC):
    """An option in use.

    Attributes:
        rule: how the step changes.
    """

    rule: Rule

    def above(self, first: int, cell: Cell) -> Option | None:
        """The option as layers and directions of a cell from that one on see it; None if it does
        not concern them."""
        return self

    @abstractmethod
    def extend(self, call: Call, reverse: bool, member: int = 0) -> Call:
        """The call of one layer in one direction, its further inputs [T, B, ...] (packed [N, ...])
        last.

        Args:
            call: as the cell alone takes it; its first input may be of another width.
            reverse: whether the direction runs from the last step to the first: further inputs are
                in its order of time then.
            member: which of the layers and directions that run together.
        """


def extended(call: Call, options: Sequence[Option], reverse: bool = False, member: int = 0) -> Call:
    """A call with all options."""
    for option in options:
        call = option.extend(call, reverse, member)
    return call


def rules_of(options: Sequence[Option]) -> tuple[Rule, ...]:
    """How they change the step, in their order."""
    return tuple([option.rule for option in options]) if options else ()
