"""What an option of a call is: an argument of ``forward``, and a change of the cell's step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from torch import Tensor

from elman.engines.call import Call
from elman.ir.graph import Graph, Node, node
from elman.ir.types import SCALAR, Shape
from elman.tuning.request import Rule

if TYPE_CHECKING:
    from elman.nn.call.bound import BoundCall
    from elman.nn.call.packing import Rows
    from elman.nn.call.parts import Parts

RULES: dict[str, Rule] = {}  # by the name that records have
SomeRule = TypeVar("SomeRule", bound=Rule)


class StepValues(NamedTuple):
    """The values that an option in use adds to every step of a call.

    Attributes:
        option: name of the option.
        facts: words that, with the option, decide how the step changes.
        tensors: [T, B, ...] each; of packed rows [N, ...].
    """

    option: str
    facts: tuple[str, ...]
    tensors: tuple[Tensor, ...]


class StepOption(ABC):
    """An option of a call that changes the cell's step: its argument has a value for each step.

    A rule rewrites the step: forward, backward, every engine and every derivative follow from it.

    Attributes:
        name: of the argument.
        companions: further arguments, which say how: their names.
    """

    name: ClassVar[str]
    companions: ClassVar[tuple[str, ...]] = ()

    def check(self, options: Mapping[str, Any]) -> None:  # noqa: B027  # most have none to check
        """Check what does not depend on other arguments.

        Raises:
            InputError: an argument cannot be so.
        """

    def sizes(self, runtime: Parts, training: bool) -> tuple[int, ...]:
        """Sizes of a step's value.

        Args:
            runtime: of the module.
            training: whether it trains.

        Raises:
            InputError: the module has no use for this option.
        """
        return ()

    @abstractmethod
    def enter(self, value: Tensor, call: BoundCall) -> None:
        """Change a call as the argument says.

        Args:
            value: the argument in the inner layout, [T, B, *sizes] or [N, *sizes].
            call: to be changed.
        """

    @abstractmethod
    def rule(self, facts: Sequence[str]) -> Rule:
        """How the step changes."""

    @abstractmethod
    def extend(self, values: StepValues, call: Call, reverse: bool, member: int) -> Call:
        """The call of one layer in one direction, its further inputs last.

        Args:
            values: of the call.
            call: as the cell alone takes it; its first input may be of another width.
            reverse: whether the direction runs from the last step to the first: further inputs are
                in its order of time then.
            member: which of the layers and directions that run together.
        """

    def for_layers(
        self, values: StepValues, first: int, end: int, draws: Sequence[str]
    ) -> StepValues | None:
        """The values of some layers and directions; None if the option does not concern them.

        Args:
            values: of all.
            first, end: which layers and directions.
            draws: what their cells draw by, of :func:`elman.passes.draws.draws`.
        """
        return values

    def pack(self, values: StepValues, rows: Rows) -> StepValues:
        """Values [T, B, ...] as those of packed rows."""
        return values._replace(tensors=tuple([rows.pack(value) for value in values.tensors]))


def register_rule(rule: SomeRule) -> SomeRule:
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
    leaf_names = {leaf.name for leaf in graph.leaves}
    while name in leaf_names:
        name += "_"
    return node(op, (), (name,), shape)
