"""Find values that are 0 or 1 in every step: spikes, hard gates, one-hot vectors."""

from __future__ import annotations

from elman.ir.graph import Node
from elman.ir.ops import COMPARISONS
from elman.ir.pair import Step

_ALWAYS = (*COMPARISONS, "one_hot")
# ops whose value is 0 or 1 if all arguments are
_KEPT = ("mul", "minimum", "maximum", "stop", "relu", "abs", "sign", "floor", "round", "spread")
_AS_THEY_ARE = (((1.0,), 0.0), ((-1.0,), 1.0))  # coefficients and bias of s and of 1 - s


def two_valued(step: Step) -> frozenset[Node]:
    """Values of a step that are 0 or 1, provided that the initial states among them are.

    By induction a state is binary if its next value is; the initial state is the caller's and may
    be any number, so a kernel checks a state's values at run time.
    """
    pairs = list(zip(step.states, step.next_states, strict=True))
    states = {leaf for leaf, after in pairs if leaf is not after}
    while True:
        binary = _binary_values(step, states)
        wrong = {leaf for leaf, after in pairs if leaf in states and after not in binary}
        if not wrong:
            return frozenset(binary)
        states -= wrong


def worth_looking(step: Step) -> frozenset[Node]:
    """Values of a step that may be sparse spikes: binary values and, if the step itself produces
    binary values, its inputs, which may be spikes of another layer."""
    binary = two_valued(step)
    fires = any(value in binary for value in step.roots)
    return binary.union(step.inputs) if fires else binary


def _binary_values(step: Step, states: set[Node]) -> set[Node]:
    """Binary values of a step, given its binary states."""
    binary: set[Node] = set()
    for value in step.walk():
        if value in states or _is(value, binary):
            binary.add(value)
    return binary


def _is(value: Node, binary: set[Node]) -> bool:
    if value.op in _ALWAYS:
        return True
    if value.op == "const":
        return value.number in (0.0, 1.0)
    if value.op == "lin":
        plain = (tuple(value.coefs), value.bias) in _AS_THEY_ARE
        return plain and value.args[0] in binary
    args = value.args[1:] if value.op == "where" else value.args
    return value.op in ("where", *_KEPT) and all(arg in binary for arg in args)
