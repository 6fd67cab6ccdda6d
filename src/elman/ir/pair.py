"""The canonical step and its adjoint, which programs partition and never change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from elman.ir.graph import Graph, Node, Rate, walk


def loop_invariant(value: Node) -> bool:
    """Whether a value depends on weights alone: a leaf of the step."""
    return value.rate == Rate.WEIGHT


class Step(Graph):
    """One step in canonical form: every value one gate block wide, or a scalar.

    Leaves carry ``data = (name, index)``, weights ``(name, row)`` or ``(name, row, column)``.
    Values of weight rate are leaves of the step too (``loop_invariant``): evaluated once per call.

    Attributes:
        inputs, states: gate block leaves in declared order.
        weights: blocks in declared order, row by row.
        next_states: one per entry of ``states``.
        outputs: the gate blocks of all outputs.
    """

    @property
    def held(self) -> frozenset[Node]:
        """States that pass through the step: the next state is the state itself."""
        pairs = zip(self.states, self.next_states, strict=True)
        return frozenset(leaf for leaf, after in pairs if leaf is after)

    def walk(self) -> Iterator[Node]:
        """Every node of the step once, arguments first; loop-invariant values are not entered."""
        return walk(self.roots, stop=loop_invariant)


@dataclass(frozen=True, eq=False)
class Sum:
    """A term of a loop-invariant value's gradient: Σ over T·B of ``left ⊗ right``, or of
    ``left``."""

    target: Node
    left: Node
    right: Node | None = None


@dataclass(frozen=True, eq=False)
class Pair:
    """The step and its adjoint.

    Attributes:
        step: the forward step.
        d_outputs: cotangent leaves, one per output gate block (rate OUTPUT).
        d_next: cotangent leaves, one per state gate block: what step t + 1 hands down (rate CARRY).
        d_states: cotangents of the states of step t - 1, one per state gate block.
        d_inputs: cotangents of the input gate blocks (None: no gradient flows).
        sums: terms of the loop-invariant values' gradients.
        d_invariants: per loop-invariant target, the cotangent leaf of its finished sum (rate
            WEIGHT).
        d_weights: per weight block, its gradient at weight rate over ``d_invariants`` (None: no
        gradient).
        derived: the step that this is the adjoint of, if it is not ``step``: values that have the
            derivative of something else (``ops.STAND_INS``) still stand in it.
        slopes: by value of ``step`` that has a surrogate's derivative: the value that it is the
            derivative by, and the derivative.
    """

    step: Step
    d_outputs: tuple[Node, ...]
    d_next: tuple[Node, ...]
    d_states: tuple[Node, ...]
    d_inputs: tuple[Node | None, ...]
    sums: tuple[Sum, ...]
    d_invariants: tuple[tuple[Node, Node], ...]
    d_weights: tuple[Node | None, ...]
    derived: Step | None = None
    slopes: Mapping[Node, tuple[Node, Node]] = field(default_factory=dict[Node, tuple[Node, Node]])

    @property
    def source(self) -> Step:
        """The step that derivatives are of: what a formula is known by, its Jacobian's pattern."""
        return self.derived or self.step

    @property
    def blocks(self) -> dict[Node, list[int]]:
        """Weight blocks by target, for targets whose sum is the gradient without further ops."""
        by_target: dict[Node, list[int]] = {}
        for target, leaf in self.d_invariants:
            indices = [index for index, d in enumerate(self.d_weights) if d is leaf]
            if indices:
                by_target[target] = indices
        return by_target

    @property
    def primal(self) -> frozenset[Node]:
        """Nodes of the forward step."""
        return frozenset(self.step.walk())
