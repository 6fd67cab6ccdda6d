"""Partial evaluation of the adjoint: zero cotangents removed, diagonal Jacobians as vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elman.errors import VerifyError
from elman.ir.build import Builder
from elman.ir.graph import Node, node, walk, with_args

# Ops of cotangents that do not mix units, if shapes are equal.
_UNIT_BY_UNIT = ("lin", "add", "sub", "neg", "mul", "div", "where")


def with_zero_cotangents(
    roots: Sequence[Node], zeros: Iterable[Node], build: Builder
) -> list[Node | None]:
    """Specialise ``roots`` to zero leaves ``zeros``; None for roots that vanish.

    The backward step is linear in its cotangents, so terms may be left out of sums; 0 times
    infinity counts as 0, as without a cotangent.
    """
    zero_leaves = set(zeros)
    new: dict[Node, Node | None] = dict.fromkeys(zero_leaves)
    for value in walk(roots, stop=zero_leaves.__contains__):
        if value not in new:
            new[value] = _linear_terms(value, new, build)
    return [new[root] for root in roots]


def within_units(
    roots: Sequence[Node | None], cotangents: Iterable[Node], build: Builder
) -> tuple[list[Node | None], dict[Node, Node]]:
    """Specialise ``roots`` to cotangents that reach no other unit.

    A product keeps the diagonal of its matrix, a sum over units vanishes, a running sum keeps the
    unit itself. Exact for states with one product on each path to the next state (GRU, LSTM); two
    products in a row become the product of their diagonals.

    Returns:
        The values, None for those that vanish; and for each matrix the leaf of its diagonal.
    """
    new: dict[Node, Node | None] = {leaf: leaf for leaf in cotangents}
    diagonals: dict[Node, Node] = {}
    present = [root for root in roots if root is not None]
    for value in walk(present, stop=new.__contains__):
        if value in new:
            continue
        reached = [arg for arg in value.args if arg in new]
        if not reached:
            continue
        if value.op in ("sum", "mean"):
            new[value] = None
        elif value.op == "cumsum":
            new[value] = new[value.args[0]]
        elif value.op == "matmul":
            new[value] = _on_diagonal(value, new[value.args[1]], diagonals, build)
        else:
            args = {arg: arg for arg in value.args}
            new[value] = _linear_terms(value, args | new, build)
    return [None if root is None else new.get(root, root) for root in roots], diagonals


@dataclass(frozen=True)
class ScaledRows:
    """A matrix with a row for each unit's cotangent: a diagonal matrix times one of weights.

    Attributes:
        vector: the diagonal, a value of the backward step with cotangents 1.
        product: the following product by a matrix of weights; None if there is none.
        reached: the cotangents that the diagonal depends on.
    """

    vector: Node
    product: Node | None
    reached: frozenset[Node]


@dataclass(frozen=True)
class Mixing:
    """The backward step after ops that mix units.

    Attributes:
        roots: the roots in terms of the leaves of ``scaled``; None for roots that vanish.
        scaled: leaf -> the rows that it represents.
        nodes: all values that depend on such leaves.
    """

    roots: tuple[Node | None, ...]
    scaled: dict[Node, ScaledRows]
    nodes: frozenset[Node]


def until_units_mix(roots: Sequence[Node | None], cotangents: Iterable[Node]) -> Mixing:
    """The values of ``roots``, cut where a unit's cotangent first reaches other units.

    Before the cut the response to a unit's cotangent is one number per unit: a diagonal matrix. A
    product multiplies it by the product's matrix; any other op that mixes units reads it as a
    matrix. Exact, unlike :func:`within_units`.
    """
    unitwise = {leaf: frozenset((leaf,)) for leaf in cotangents}
    mixed: dict[Node, Node] = {}
    scaled: dict[Node, ScaledRows] = {}
    leaves: dict[Node, Node] = {}

    def leaf_of(value: Node, vector: Node, product: Node | None) -> Node:
        if value not in leaves:
            leaf = leaves[value] = node("state", (), (f"scaled {len(leaves)}",), value.shape)
            scaled[leaf] = ScaledRows(vector, product, unitwise[vector])
        return leaves[value]

    def cut(value: Node) -> Node:
        return leaf_of(value, value, None) if value in unitwise else mixed.get(value, value)

    present = [root for root in roots if root is not None]
    for value in walk(present, stop=unitwise.__contains__):
        reached = [arg for arg in value.args if arg in unitwise]
        if value in unitwise or not (reached or any(arg in mixed for arg in value.args)):
            continue
        if value.op == "matmul" and reached:
            mixed[value] = leaf_of(value, value.args[1], value)
        elif value.op in _UNIT_BY_UNIT and all(
            arg in unitwise and arg.shape == value.shape
            for arg in value.args
            if arg in unitwise or arg in mixed
        ):
            unitwise[value] = frozenset().union(*(unitwise[arg] for arg in reached))
        else:
            mixed[value] = with_args(value, tuple(map(cut, value.args)))
    found = tuple(None if root is None else cut(root) for root in roots)
    return Mixing(found, scaled, frozenset((*scaled, *mixed.values())))


def _on_diagonal(
    value: Node, vector: Node | None, diagonals: dict[Node, Node], build: Builder
) -> Node | None:
    matrix = value.args[0]
    if vector is None or matrix.shape[0] != matrix.shape[1]:
        return None
    if matrix not in diagonals:
        name = f"diagonal {len(diagonals)}"
        diagonals[matrix] = node("weight", (), (name,), (matrix.shape[0],))
    return build.make("mul", (diagonals[matrix], vector), (), value.shape)


def _linear_terms(value: Node, new: dict[Node, Node | None], build: Builder) -> Node | None:
    args = [new[arg] for arg in value.args]
    if None not in args:
        return with_args(value, tuple(arg for arg in args if arg is not None))
    if value.op == "lin" and not value.bias:
        terms = [
            (coef, arg) for coef, arg in zip(value.coefs, args, strict=True) if arg is not None
        ]
        if not terms:
            return None
        total = build.lin(terms, shape=value.shape)
        return total if total.shape == value.shape else build.broadcast(total, value.shape)
    if value.op == "where" and args[0] is not None:
        if args[1] is None and args[2] is None:
            return None
        zero = build.const(0.0)
        return with_args(value, (args[0], args[1] or zero, args[2] or zero))
    if value.op in ("sum", "mean"):
        units = [arg for arg in args if arg is not None]
        if not units:
            return None
        if value.op == "sum":
            return build.make("sum", units, (), value.shape)
    if value.op in ("mul", "matmul", "outer", "spread", "cumsum") or (
        value.op == "div" and args[0] is None
    ):
        return None
    raise VerifyError(f"{value} is not linear in a cotangent")
