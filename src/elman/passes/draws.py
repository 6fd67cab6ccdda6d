"""Random numbers in formulas: drawn from keys in training, expected values in evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from elman.ir.graph import Graph, Node, node, walk, with_args
from elman.ir.types import SCALAR

STEP, SEQUENCE = "step", "sequence"  # how often a new number is drawn
_NAMES = {STEP: ("key_high", "key_low"), SEQUENCE: ("sequence_high", "sequence_low")}


def draws(graph: Graph) -> tuple[str, ...]:
    """Periods of a formula's random numbers: ``step``, ``sequence``, both or none."""
    periods = {value.data[2] for value in walk(graph.roots) if value.op == "draw"}
    return tuple(per for per in _NAMES if per in periods)


def draws_of(graphs: Iterable[Graph]) -> tuple[str, ...]:
    """Periods of the random numbers of several formulas."""
    periods = {per for graph in graphs for per in draws(graph)}
    return tuple(per for per in _NAMES if per in periods)


def expected(graph: Graph) -> Graph:
    """The formula without randomness.

    rewrite: training(drawn, expected) -> expected
    """
    return _without(graph, 1) if _chooses(graph) else graph


def sampled(graph: Graph, per: tuple[str, ...]) -> Graph:
    """The formula in training, with keys as further inputs: two scalars for each of ``per``.

    rewrite: training(where(draw >= p, v, 0), v) -> where(uniform(key_high, key_low) >= p, v, 0)
    """
    names = {leaf.name for leaf in graph.leaves}
    keys = {period: tuple(_key(name, names) for name in _NAMES[period]) for period in per}
    inputs = (*graph.inputs, *(leaf for pair in keys.values() for leaf in pair))
    graph = _without(graph, 0)

    def keyed(old: Node, args: tuple[Node, ...]) -> Node:
        if old.op != "draw":
            return with_args(old, args)
        _, number, period = old.data
        return node("uniform", keys[period], (number,), old.shape, old.where)

    return replace(graph.rebuilt(keyed), inputs=inputs)


@dataclass(frozen=True)
class Sampled:
    """:func:`sampled` as a rule of a call in training."""

    name: str
    per: tuple[str, ...]

    def rewrite(self, graph: Graph) -> Graph:
        """See :func:`sampled`."""
        return sampled(graph, self.per)


_EACH = (
    Sampled("draws", (STEP,)),
    Sampled("draws_once", (SEQUENCE,)),
    Sampled("draws_both", (STEP, SEQUENCE)),
)
SAMPLED = {rule.per: rule for rule in _EACH}  # by the periods of a cell's draws


def _chooses(graph: Graph) -> bool:
    return any(value.op == "training" for value in graph.walk())


def _without(graph: Graph, index: int) -> Graph:
    def chosen(old: Node, args: tuple[Node, ...]) -> Node:
        return args[index] if old.op == "training" else with_args(old, args)

    return graph.rebuilt(chosen)


def _key(name: str, names: set[str]) -> Node:
    while name in names:
        name += "_"
    return node("input", (), (name,), SCALAR)
