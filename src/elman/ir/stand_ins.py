"""Ops with a custom gradient: removed from the step once the adjoint is derived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from elman.ir.build import Builder
from elman.ir.graph import Node, walk
from elman.ir.ops import STAND_INS
from elman.ir.pair import Pair, Step, Sum, loop_invariant


def values_of(roots: Iterable[Node], build: Builder) -> dict[Node, Node]:
    """Map every node below ``roots`` to its value without custom gradients.

    rewrite: surrogate(v > 0, v, slope) -> v > 0;  clip_gradient(v, limit) -> v
    keeps: every value, bit for bit. Those of weight rate stay: they have sums of their own.
    """
    new: dict[Node, Node] = {}
    for old in walk(roots):
        args = tuple(new[arg] for arg in old.args)
        if old.op in STAND_INS and not loop_invariant(old):
            new[old] = build.broadcast(args[0], old.shape)
        elif args == old.args:
            new[old] = old
        else:
            new[old] = build.make(old.op, args, old.data, old.shape, old.where)
    return new


def running(step: Step, values: Mapping[Node, Node]) -> Step:
    """The step whose values are those of :func:`values_of`."""
    return replace(
        step,
        next_states=tuple(values[root] for root in step.next_states),
        outputs=tuple(values[root] for root in step.outputs),
    )


def without_stand_ins(pair: Pair, build: Builder) -> Pair:
    """Remove custom gradients from the forward step; only the backward computes surrogate
    slopes."""
    operands = [d for term in pair.sums for d in (term.left, term.right)]
    ends = [d for d in (*pair.d_states, *pair.d_inputs, *operands) if d is not None]
    roots = [*pair.step.roots, *ends]
    if not any(value.op in STAND_INS and not loop_invariant(value) for value in walk(roots)):
        return pair
    values = values_of(roots, build)

    def some(d: Node | None) -> Node | None:
        return None if d is None else values[d]

    surrogates = [old for old in pair.step.walk() if old.op == "surrogate"]
    return replace(
        pair,
        step=running(pair.step, values),
        d_states=tuple(values[d] for d in pair.d_states),
        d_inputs=tuple(map(some, pair.d_inputs)),
        sums=tuple(Sum(term.target, values[term.left], some(term.right)) for term in pair.sums),
        derived=pair.step,
        slopes={
            values[old]: (values[old.args[1]], values[old.args[2]])
            for old in surrogates
            if not loop_invariant(old)
        },
    )
