"""Dependence of a step on its states: recurrent states and the sparsity of their Jacobian."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from elman.ir.graph import Node, Rate
from elman.ir.ops import FLAT, OPS, STAND_INS
from elman.ir.pair import Step


class JacobianPattern(IntEnum):
    """Pattern of the derivative of one value by one state; a higher kind contains the lower."""

    NONE = 0
    DIAGONAL = 1  # each unit on the same unit alone
    DENSE = 2


class Degree(IntEnum):
    """How a value depends on the states: not at all, as an affine function, otherwise."""

    CONSTANT = 0
    LINEAR = 1
    NONLINEAR = 2


@dataclass(frozen=True)
class Structure:
    """Structure of a step's recurrence.

    Attributes:
        recurrent: indices of the state gate blocks that a step reads and changes; other states are
            outputs only, or are held.
        kinds: per (next state, state), both of ``recurrent``; pairs of kind NONE are left out.
        degree: LINEAR if every next state is an affine function of the states.
        groups: recurrent states that depend on each other, directly or not, in order.
    """

    recurrent: tuple[int, ...]
    kinds: dict[tuple[int, int], JacobianPattern]
    degree: Degree
    groups: tuple[tuple[int, ...], ...]

    @property
    def diagonal(self) -> bool:
        """Whether no unit depends on another unit of the step before."""
        return JacobianPattern.DENSE not in self.kinds.values()

    def show(self, names: tuple[str, ...]) -> str:
        """One line: ``diagonal in blocks of 2 (h, c), nonlinear``.

        Args:
            names: of all state gate blocks.
        """
        if not self.kinds:
            return "none: no step depends on the one before"
        descriptions: list[str] = []
        for group in self.groups:
            inside = [self.kinds[p] for p in self.kinds if p[0] in group]
            listed = ", ".join(names[index] for index in group)
            if not inside:
                descriptions.append(f"none ({listed})")
            elif JacobianPattern.DENSE in inside:
                descriptions.append(f"dense ({listed})")
            elif len(group) == 1:
                descriptions.append(f"diagonal ({listed})")
            else:
                descriptions.append(f"diagonal in blocks of {len(group)} ({listed})")
        return "; ".join(descriptions) + f"; {self.degree.name.lower()} in the state"


_LINEAR = ("lin", "matmul", "sum", "mean", "fold")
Dependence = dict[Node, JacobianPattern]


def _join(dependences: Iterable[Dependence]) -> Dependence:
    pattern: Dependence = {}
    for dependence in dependences:
        for state, kind in dependence.items():
            pattern[state] = max(kind, pattern.get(state, JacobianPattern.NONE))
    return pattern


def _full(dependence: Dependence) -> Dependence:
    return dict.fromkeys(dependence, JacobianPattern.DENSE)


class _Walk:
    """Dependence of every value of a step on the states."""

    def __init__(self, states: tuple[Node, ...], passthrough: frozenset[Node]) -> None:
        self.kinds: dict[Node, Dependence] = {
            state: {} if state in passthrough else {state: JacobianPattern.DIAGONAL}
            for state in states
        }
        self.degrees: dict[Node, Degree] = {
            state: Degree.CONSTANT if state in passthrough else Degree.LINEAR for state in states
        }

    def kind(self, value: Node) -> Dependence:
        return self.kinds.get(value, {})

    def degree(self, value: Node) -> Degree:
        return self.degrees.get(value, Degree.CONSTANT)

    def visit(self, value: Node) -> None:
        """Visit a value; its arguments were visited."""
        if value in self.kinds or value.rate < Rate.STATE:
            return
        self.kinds[value] = self._kind_of(value)
        self.degrees[value] = self._degree_of(value)

    def _kind_of(self, value: Node) -> Dependence:
        if value.op in FLAT:
            return {}
        if value.op in STAND_INS:
            derived = value.args[value.op == "surrogate"]  # the argument that gets the derivative
            dependence = self.kind(derived)
            return dependence if derived.shape == value.shape else _full(dependence)
        dependences = [
            _full(self.kind(arg)) if arg.shape != value.shape else self.kind(arg)
            for arg in value.args
        ]
        if value.op == "where":
            dependences = dependences[1:]
        pattern = _join(dependences)
        return pattern if OPS[value.op].kind == "pointwise" else _full(pattern)

    def _degree_of(self, value: Node) -> Degree:
        degrees = [self.degree(arg) for arg in value.args]
        highest = max(degrees, default=Degree.CONSTANT)
        if highest == Degree.CONSTANT:
            return highest
        if OPS[value.op].kind in ("scan", "spread") or value.op in _LINEAR:
            return highest
        if value.op in ("mul", "bmm"):
            return highest if Degree.CONSTANT in degrees else Degree.NONLINEAR
        if value.op == "div" and degrees[1] == Degree.CONSTANT:
            return highest
        if value.op == "where" and degrees[0] == Degree.CONSTANT:
            return highest
        return Degree.NONLINEAR


def structure(step: Step) -> Structure:
    """Find the structure of a canonical step.

    The kinds are a pattern: outside of it every derivative is 0; inside, any may be. ``stop`` and
    comparisons pass no derivative, as in the backward step.
    """
    passthrough = step.held
    walk = _Walk(step.states, passthrough)
    read = set[Node]()
    for value in step.walk():
        walk.visit(value)
        read.update(value.args)
    read |= {root for root in step.roots if root in walk.kinds and root.op == "state"}
    place = {state: index for index, state in enumerate(step.states)}
    recurrent = tuple(index for state, index in place.items() if state in read - passthrough)
    kinds: dict[tuple[int, int], JacobianPattern] = {}
    degrees = [Degree.CONSTANT]
    for index in recurrent:
        root = step.next_states[index]
        pattern = walk.kind(root)
        degrees.append(walk.degree(root))
        for state, kind in pattern.items():
            if kind:
                same_shape = root.shape == step.states[index].shape
                kinds[index, place[state]] = kind if same_shape else JacobianPattern.DENSE
    return Structure(recurrent, kinds, max(degrees), _groups(recurrent, kinds))


def _groups(
    members: tuple[int, ...], pairs: Iterable[tuple[int, int]]
) -> tuple[tuple[int, ...], ...]:
    """Connected components of members under pairs, each in order."""
    group = {member: {member} for member in members}
    for a, b in pairs:
        if group[a] is not group[b]:
            group[a] |= group[b]
            for member in group[a]:
                group[member] = group[a]
    return tuple(sorted({tuple(sorted(numbers)) for numbers in group.values()}))
