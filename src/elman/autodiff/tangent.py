"""The tangent (forward derivative) of a step, as a step.

Jacobian-vector products of a cell over all steps are the forward of its tangent; second derivatives
are the tangent's backward (the R-operator of Pearlmutter 1994, "Fast exact multiplication by the
Hessian").
"""

from __future__ import annotations

from elman.autodiff.rules import VJP, Row
from elman.ir.build import Builder
from elman.ir.graph import Graph, Node, node
from elman.ir.ops import OPS


class _Moving:
    """Tangents of values; values without one are constant."""

    def __init__(self) -> None:
        self.build = Builder()
        self.of: dict[Node, Node] = {}

    def visit(self, value: Node) -> None:
        """Derive the tangent of a value from those of its arguments."""
        arg_tangents = [self.of.get(arg) for arg in value.args]
        if not any(arg_tangents):
            return
        kind = OPS[value.op].kind
        if kind == "move":
            tangents = [
                d or self.zero(arg) for arg, d in zip(value.args, arg_tangents, strict=True)
            ]
            tangent = node(value.op, tangents, value.data, value.shape, value.where)
        elif kind == "scan" or value.op in ("spread", "tile", "fold"):  # linear
            tangents = [d for d in arg_tangents if d is not None]
            tangent = node(value.op, tangents, value.data, value.shape, value.where)
        elif kind == "product":
            tangent = self._product(value, arg_tangents)
        else:
            tangent = self._partial(value, arg_tangents)
        if tangent is not None:
            self.of[value] = tangent

    def zero(self, like: Node) -> Node:
        """Zeros in the shape of a value."""
        return self.build.broadcast(self.build.const(0.0), like.shape)

    def _product(self, value: Node, tangents: list[Node | None]) -> Node:
        left, right = value.args
        d_left, d_right = tangents
        pairs: list[tuple[Node, Node]] = []
        if d_left is not None:
            pairs.append((d_left, right))
        if d_right is not None:
            pairs.append((left, d_right))
        terms = [node(value.op, pair, value.data, value.shape, value.where) for pair in pairs]
        return self.build.lin([(1.0, term) for term in terms])

    def _partial(self, value: Node, tangents: list[Node | None]) -> Node | None:
        """Pointwise ops and reductions: the VJP row holds the partial derivatives."""
        build = self.build
        reduced = OPS[value.op].kind == "reduce"
        terms: list[Node] = []
        for place, d in enumerate(tangents):
            if d is None:
                continue
            if reduced:
                part = VJP[value.op](build, value, build.const(1.0))[place]
                if part is not None:
                    term = build.broadcast(build.mul(part, d), value.args[place].shape)
                    terms.append(build.make("sum", (term,), (), value.shape))
                continue
            part = _WRITTEN.get(value.op, VJP.get(value.op, _missing))(build, value, d)[place]
            if part is not None:
                terms.append(part)
        if not terms:
            return None
        tangent = build.lin([(1.0, term) for term in terms], shape=value.shape)
        return tangent if tangent.shape == value.shape else build.broadcast(tangent, value.shape)


def _missing(build: Builder, value: Node, d: Node) -> tuple[Node | None, ...]:
    raise KeyError(value.op)


_WRITTEN: dict[str, Row] = {  # ops that the canonical form gathers into ``lin``, and one more
    "add": lambda b, n, d: (d, d),
    "sub": lambda b, n, d: (d, b.scale(-1.0, d)),
    "neg": lambda b, n, d: (b.scale(-1.0, d),),
    "clip_gradient": lambda b, n, d: (d, None),  # only the backward is clipped
}


def _dotted(leaf: Node, names: set[str]) -> Node:
    name = f"{leaf.name}_dot"
    while name in names:
        name += "_"
    names.add(name)
    return node(leaf.op, (), (name,), leaf.shape, leaf.where)


def tangent(graph: Graph, inputs: frozenset[str], weights: frozenset[str]) -> Graph:
    """Derive the tangent of a step from the VJP rows.

    Args:
        graph: the step as written.
        inputs, weights: names of those with a tangent; every state has one.

    Returns:
        A step whose inputs, states and weights are those of ``graph``, each kind followed by its
        tangents. Its outputs are the tangents of the outputs.
    """
    moving = _Moving()
    leaf_names = {leaf.name for leaf in graph.leaves}
    kinds: list[tuple[Node, ...]] = []
    for leaves, names in ((graph.inputs, inputs), (graph.states, None), (graph.weights, weights)):
        variables = [leaf for leaf in leaves if names is None or leaf.name in names]
        dots = {leaf: _dotted(leaf, leaf_names) for leaf in variables}
        moving.of.update(dots)
        kinds.append((*leaves, *dots.values()))
    for value in graph.walk():
        if value.args:
            moving.visit(value)
    ends = [moving.of.get(root) or moving.zero(root) for root in graph.next_states]
    outputs = tuple(moving.of.get(root) or moving.zero(root) for root in graph.outputs)
    all_inputs, all_states, all_weights = kinds
    return Graph(all_inputs, all_states, all_weights, (*graph.next_states, *ends), outputs)
