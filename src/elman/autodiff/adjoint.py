"""The adjoint of a step: cotangents of states and inputs, and terms of the weights' gradients."""

from __future__ import annotations

from elman.autodiff.rules import VJP
from elman.ir.build import Builder, scales
from elman.ir.graph import Node, Rate, walk
from elman.ir.pair import Pair, Step, Sum, loop_invariant
from elman.ir.types import Shape, is_matrix

_CONSTANTS = ("const", "count")


def _fitted(build: Builder, part: Node, shape: Shape) -> Node:
    """A cotangent in its value's shape: summed over units for a scalar, broadcast for a vector."""
    if part.shape == shape:
        return part
    if not shape:
        return build.make("sum", (part,), (), ())
    return build.broadcast(part, shape)


def _split_coefficient(build: Builder, part: Node) -> tuple[float, Node]:
    """Split a node into a coefficient and a node."""
    if build.open(part) and len(part.args) == 1 and not part.bias and scales(part.coefs[0]):
        return part.coefs[0], part.args[0]
    return 1.0, part


def _summed(build: Builder, cotangents: list[Node]) -> list[Node]:
    """Sum the cotangents of a scalar over units: one reduction per rate and coefficient, and one
    per matrix, taken in the pass that computes the matrix.

    before: sum(-a) + sum(-b)  ->  after: -sum(a, b)
    """
    groups: dict[tuple[float, Rate, Node | None], list[Node]] = {}
    rest: list[Node] = []
    for cotangent in cotangents:
        if len(cotangent.shape) == 1:
            coef, value = _split_coefficient(build, cotangent)
            key = coef, value.rate, value if is_matrix(value) else None
            groups.setdefault(key, []).append(value)
        else:
            rest.append(_fitted(build, cotangent, ()))
    sums = [
        build.scale(coef, build.make("sum", value, (), ())) for (coef, *_), value in groups.items()
    ]
    return rest + sums


class _Cotangents:
    """Accumulates the cotangents of each value."""

    def __init__(self, build: Builder) -> None:
        self.build = build
        self.contributions: dict[Node, list[Node]] = {}

    def add(self, value: Node, part: Node | None) -> None:
        if part is not None and value.op not in _CONSTANTS:
            self.contributions.setdefault(value, []).append(part)

    def total(self, value: Node) -> Node | None:
        contributions = self.contributions.get(value)
        if not contributions:
            return None
        if value.shape:
            terms = [_fitted(self.build, part, value.shape) for part in contributions]
        else:
            terms = _summed(self.build, contributions)
        cotangent = self.build.lin([(1.0, part) for part in terms], shape=value.shape)
        return (
            cotangent
            if cotangent.shape == value.shape
            else self.build.broadcast(cotangent, value.shape)
        )


def _back(build: Builder, roots: list[Node], flow: _Cotangents, weight_rate: bool) -> list[Sum]:
    """Apply the VJP rows from ``roots`` down; without ``weight_rate`` the walk stops at
    loop-invariant values."""
    order = list(walk(roots, stop=None if weight_rate else loop_invariant))
    sums: list[Sum] = []
    for value in reversed(order):
        d = flow.total(value)
        if d is None or not value.args or (loop_invariant(value) and not weight_rate):
            continue
        for arg, part in zip(value.args, VJP[value.op](build, value, d), strict=True):
            if part is None or arg.op in _CONSTANTS:
                continue
            if loop_invariant(arg) and not weight_rate:
                if part.op == "outer":  # kept as two operands: a product over T·B sums it
                    sums.append(Sum(arg, *part.args))
                else:
                    sums.append(Sum(arg, _fitted(build, part, arg.shape)))
            else:
                flow.add(arg, part)
    return sums


def adjoint(step: Step, build: Builder) -> Pair:
    """Derive the backward step from the VJP rows.

    The step's adjoint stops at loop-invariant values; their cotangents are summed over T·B first,
    and a second adjoint, at weight rate, gives the gradients of the weights.
    """
    d_outputs = tuple(
        build.make("cotangent", (), ("output", i), root.shape, "", Rate.OUTPUT)
        for i, root in enumerate(step.outputs)
    )
    d_next = tuple(
        build.make("cotangent", (), (*leaf.data,), leaf.shape, "", Rate.CARRY)
        for leaf in step.states
    )
    flow = _Cotangents(build)
    direct: list[Sum] = []
    for root, d in (
        *zip(step.outputs, d_outputs, strict=True),
        *zip(step.next_states, d_next, strict=True),
    ):
        flow.add(root, d)
        if loop_invariant(root) and root.op not in _CONSTANTS:
            direct.append(Sum(root, _fitted(build, d, root.shape)))
    sums = [*direct, *_back(build, list(step.roots), flow, weight_rate=False)]
    zero = build.const(0.0)
    d_states = tuple(flow.total(leaf) or build.broadcast(zero, leaf.shape) for leaf in step.states)
    d_inputs = tuple(flow.total(leaf) for leaf in step.inputs)

    targets = list(dict.fromkeys(term.target for term in sums))
    d_invariants = tuple(
        (target, build.make("cotangent", (), ("invariant", i), target.shape, "", Rate.WEIGHT))
        for i, target in enumerate(targets)
    )
    inner = _Cotangents(build)
    for target, d in d_invariants:
        inner.add(target, d)
    _back(build, targets, inner, weight_rate=True)
    d_weights = tuple(inner.total(leaf) for leaf in step.weights)
    return Pair(step, d_outputs, d_next, d_states, d_inputs, tuple(sums), d_invariants, d_weights)
