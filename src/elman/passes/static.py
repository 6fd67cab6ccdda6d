"""Hoist values of static inputs and weights out of the step: computed once per sequence.

Weights that multiply a matrix per sample (``per_sample``) are hoisted too: each sample has a copy.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from elman.ir.graph import Graph, Node, Rate, node, with_args
from elman.ir.printer import source_names
from elman.passes.simplify import share


class Split(NamedTuple):
    """A formula in two parts.

    Attributes:
        once: values that depend on static inputs and weights alone, and that the step reads.
        step: the formula without static inputs: further states hold those values, after all
            others; their next value is the state itself.
    """

    once: tuple[Node, ...]
    step: Graph


def split_static(graph: Graph, static: Collection[str]) -> Split:
    """Split a formula at the last values that are constant within a sequence.

    rewrite: sigmoid(V @ s) * tanh(W @ x + R @ h) -> held * tanh(W @ x + R @ h),
             once: held = sigmoid(V @ s)
    keeps: every value, bit for bit.

    Args:
        graph: as written.
        static: the names of those inputs that have one value per sequence.
    """
    whole = share(graph)
    values = list(whole.walk())
    fixed: set[Node] = set()  # values that are constant within a sequence
    for value in values:
        if value.op == "input":
            is_fixed = value.name in static
        elif value.op == "per_sample":
            is_fixed = True
        else:
            # each step clips its gradient; a hoisted clip would clip the sum over all steps
            is_fixed = value.op != "clip_gradient" and any(arg in fixed for arg in value.args)
            is_fixed = is_fixed and all(
                arg in fixed or arg.rate == Rate.WEIGHT for arg in value.args
            )
        if is_fixed:
            fixed.add(value)
    if not (fixed or static):
        return Split((), whole)
    read = {arg for value in values if value not in fixed for arg in value.args} | {*whole.roots}
    fixed_values = [value for value in values if value in fixed and value in read]
    states = dict(zip(fixed_values, _leaves(whole, fixed_values), strict=True))

    new: dict[Node, Node] = {}
    for value in values:
        if value not in fixed:
            new[value] = with_args(value, tuple(new[arg] for arg in value.args))
        elif value in states:
            new[value] = states[value]
    leaves = tuple(states.values())
    return Split(
        tuple(fixed_values),
        Graph(
            tuple(leaf for leaf in whole.inputs if leaf.name not in static),
            (*whole.states, *leaves),
            whole.weights,
            (*(new[root] for root in whole.next_states), *leaves),
            tuple(new[root] for root in whole.outputs),
        ),
    )


def _leaves(graph: Graph, values: Collection[Node]) -> list[Node]:
    """Pass-through states for some values, named as in the formula."""
    names, leaf_names = source_names(graph.walk()), {leaf.name for leaf in graph.leaves}
    leaves: list[Node] = []
    for value in values:
        name = value.name if value.op == "input" else names.get(value, "held")
        while name in leaf_names and value.op != "input":
            name += "_"
        leaf_names.add(name)
        leaves.append(node("state", (), (name,), value.shape, value.where))
    return leaves
