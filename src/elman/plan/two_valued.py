"""Values that are 0 or 1 in every step, as the graph knows them: spikes, hard gates, one-hot
vectors."""

from __future__ import annotations

from elman.ir.graph import Node
from elman.ir.ops import COMPARISONS
from elman.ir.pair import Step

_ALWAYS = (*COMPARISONS, "one_hot")
# 0 and 1 to 0 and 1, in whatever arguments they take
_KEPT = ("mul", "minimum", "maximum", "stop", "relu", "abs", "sign", "floor", "round", "spread")
_AS_THEY_ARE = (((1.0,), 0.0), ((-1.0,), 1.0))  # coefficients and bias of s and of 1 - s


def two_valued(step: Step) -> frozenset[Node]:
    """Values of a step that are 0 or 1 if the states that are among them are.

    A state is if its next value is, by induction; the first one is a caller's, who may give any
    number. So whoever uses this has to look at a state's values.
    """
    pairs = list(zip(step.states, step.next_states, strict=True))
    states = {leaf for leaf, after in pairs if leaf is not after}
    while True:
        found = _found(step, states)
        wrong = {leaf for leaf, after in pairs if leaf in states and after not in found}
        if not wrong:
            return frozenset(found)
        states -= wrong


def worth_looking(step: Step) -> frozenset[Node]:
    """Values of a step of which most may be 0 and the others 1: where it fires itself, its inputs
    too, which may be another layer's spikes."""
    known = two_valued(step)
    fires = any(value in known for value in step.roots)
    return known.union(step.inputs) if fires else known


def _found(step: Step, states: set[Node]) -> set[Node]:
    """The values that are, if these states are."""
    found: set[Node] = set()
    for value in step.walk():
        if value in states or _is(value, found):
            found.add(value)
    return found


def _is(value: Node, known: set[Node]) -> bool:
    if value.op in _ALWAYS:
        return True
    if value.op == "const":
        return value.number in (0.0, 1.0)
    if value.op == "lin":
        plain = (tuple(value.coefs), value.bias) in _AS_THEY_ARE
        return plain and value.args[0] in known
    args = value.args[1:] if value.op == "where" else value.args
    return value.op in ("where", *_KEPT) and all(arg in known for arg in args)
