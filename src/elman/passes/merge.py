"""Several steps as one, where matrices per sample are affine in their states: the chunkwise form.

One step of the delta rule is ``S = a * S + outer(k, u)``, where ``u = b * (v - S.T @ k)``. Over
several steps every matrix stays a sum of terms ``scale * rows(left) * columns(right) * base``,
whose base is a matrix before the first of them, or of rank one where there is none. So every
product with a vector is one with the first matrix, and products of vectors:

    (a * S + outer(k, u)).T @ q  ->  a * (S.T @ q) + sum(k * q) * u

The matrix is then read once for all products of all these steps, and written once after them.
Nothing is divided by a decay. The merged step is a step like any other: tape, replay and backward
come from the usual passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from elman.ir.graph import Graph, Node, node
from elman.ir.ops import OPS
from elman.ir.types import is_matrix, matrix_axes
from elman.passes.simplify import share

MERGED_STEPS = 4  # eight are no faster: products of vectors grow with the square of the number
_MOST_TERMS = 4  # of a matrix per step, and twice as many more; others cost more than they save


class _NotAffineError(Exception):
    """A matrix per sample is not affine in the earlier ones."""


class _Term(NamedTuple):
    """``scale * rows(left) * columns(right) * base``; None: 1.

    Terms with a base have a ``gate``: where it is 0 the term is 0, even if the base is NaN.
    """

    base: Node | None = None
    left: Node | None = None
    right: Node | None = None
    scale: Node | None = None
    gate: Node | None = None


class _Affine(NamedTuple):
    """A matrix per sample as a sum of terms.

    Attributes:
        like: a matrix of the same shape.
        terms: terms of the sum.
    """

    like: Node
    terms: tuple[_Term, ...]


_Value = Node | _Affine


def step_input(name: str, step: int) -> str:
    """The name of an input of one of several merged steps."""
    return f"{name}:{step}"


def merge_steps(graph: Graph, count: int) -> Graph | None:
    """The formula of ``count`` steps, which has the inputs and the outputs of all of them, step by
    step; None if a matrix per sample is not affine in those before, or there is none.

    rewrite: (a * S + outer(k, u)).T @ q -> a * (S.T @ q) + sum(k * q) * u
    keeps: every value, up to rounding.
    """
    changing = [s for s, n in zip(graph.states, graph.next_states, strict=True) if n is not s]
    if not any(map(is_matrix, changing)):
        return None
    states: list[_Value] = [_begin(leaf) for leaf in graph.states]
    inputs: list[Node] = []
    outputs: list[Node] = []
    try:
        for step in range(count):
            values: dict[Node, _Value] = dict(zip(graph.states, states, strict=True))
            values.update({leaf: _begin(leaf) for leaf in graph.weights})
            for leaf in graph.inputs:
                name = step_input(leaf.name, step)
                inputs.append(node(leaf.op, (), (name, *leaf.data[1:]), leaf.shape, leaf.where))
                values[leaf] = _begin(inputs[-1])
            for old in graph.walk():
                if old not in values:
                    values[old] = _rebuild(old, [values[arg] for arg in old.args])
            states = [_combine(values[root], step) for root in graph.next_states]
            outputs += [_node(values[root]) for root in graph.outputs]
    except _NotAffineError:
        return None
    nexts = tuple(map(_write_out, states))
    return share(Graph(tuple(inputs), graph.states, graph.weights, nexts, tuple(outputs)))


def _begin(leaf: Node) -> _Value:
    return _Affine(leaf, (_Term(leaf),)) if is_matrix(leaf) else leaf


def _node(value: _Value) -> Node:
    """A value as a node. Raises _NotAffineError for a matrix."""
    if isinstance(value, _Affine):
        raise _NotAffineError
    return value


def _rebuild(old: Node, args: list[_Value]) -> _Value:
    """One node of a later step."""
    if old.op in ("draw", "uniform"):
        raise _NotAffineError  # each step draws a number of its own
    if is_matrix(old):
        rule = _MATRICES.get(old.op)
        if rule is None:
            raise _NotAffineError
        return rule(old, args)
    (matrix, *factors) = args or [old]
    if isinstance(matrix, _Affine) and not factors:
        return _reduce(old, matrix)
    return node(old.op, map(_node, args), old.data, old.shape, old.where)


# scalars and vectors


def _times(*factors: Node | None) -> Node | None:
    """The product of some factors, of scalars and vectors; None: 1."""
    product: Node | None = None
    for factor in factors:
        if factor is not None:
            if product is None:
                product = factor
            else:
                shape = max(product.shape, factor.shape, key=len)
                product = node("mul", (product, factor), (), shape)
    return product


def _sum_of(vector: Node | None, like: Node, axis: int) -> Node:
    """The sum of a vector along an axis of a matrix; the number of units for a vector of ones."""
    if vector is None:
        return node("count", (), (matrix_axes(like)[axis],))
    return node("sum", (vector,))


def _one(factor: Node | None) -> Node:
    return node("const", (), (1.0,)) if factor is None else factor


def _along(vector: Node | None, like: Node, axis: int) -> Node:
    """A vector, or a number for each unit, along an axis of a matrix."""
    value, shape = _one(vector), ((matrix_axes(like)[axis],),)
    return value if value.shape else node("spread", (value,), (), shape)


def _total(values: list[Node]) -> Node:
    total = values[0]
    for value in values[1:]:
        total = node("add", (total, value), (), max(total.shape, value.shape, key=len))
    return total


# matrices


def _multiply(term: _Term, other: _Term) -> _Term:
    if term.base is not None and other.base is not None:
        raise _NotAffineError
    return _Term(term.base or other.base, *map(_times, term[1:], other[1:]))


def _combine(value: _Value, step: int) -> _Value:
    """A matrix after a step; joins terms that differ in their scale, or their right vector."""
    if not isinstance(value, _Affine):
        return value
    terms: dict[object, _Term] = {}
    for term in value.terms:
        rank_one = term.base is None and term.left is not None and term.right is not None
        if rank_one:  # terms of one left vector are then one term, whose right vectors are summed
            term = term._replace(right=_times(term.scale, term.right), scale=None)
        key = (None, term.left) if rank_one else (*term[:3], term.gate)
        other = terms.get(key)
        if other is not None:
            field = "right" if rank_one else "scale"
            numbers = [_one(getattr(one_term, field)) for one_term in (other, term)]
            term = term._replace(**{field: _total(numbers)})
        terms[key] = term
    if len(terms) > _MOST_TERMS * (step + 2):
        raise _NotAffineError
    return value._replace(terms=tuple(terms.values()))


def _terms(value: _Value) -> tuple[_Term, ...]:
    return value.terms if isinstance(value, _Affine) else (_Term(scale=value),)


def _mul(old: Node, args: list[_Value]) -> _Value:
    first, second = map(_terms, args)
    if len(first) > 1 and len(second) > 1:
        raise _NotAffineError
    return _Affine(old, tuple(_multiply(term, other) for term in first for other in second))


def _div(old: Node, args: list[_Value]) -> _Value:
    divisor, *divisors = _terms(args[1])
    if divisors or divisor.base is not None:
        raise _NotAffineError
    inverse = [
        None if factor is None else node("div", (_one(None), factor), (), factor.shape)
        for factor in divisor[1:]
    ]
    return _Affine(old, tuple(_multiply(term, _Term(None, *inverse)) for term in _terms(args[0])))


def _add(old: Node, args: list[_Value]) -> _Value:
    minus = _Term(scale=node("const", (), (-1.0,)))
    terms = list(_terms(args[0]))
    if old.op == "neg":
        terms = [_multiply(term, minus) for term in terms]
    for arg in args[1:]:
        terms += [_multiply(t, minus) if old.op == "sub" else t for t in _terms(arg)]
    return _Affine(old, tuple(terms))


def _where(old: Node, args: list[_Value]) -> _Value:
    """Shared terms select their factors with ``where``; other terms are 0 on the other side."""
    condition = _node(args[0])
    if condition.shape:
        raise _NotAffineError
    first, second = (
        [] if isinstance(v, Node) and v.op == "const" and v.number == 0.0 else [*_terms(v)]
        for v in args[1:]
    )

    def choose(a: Node | None, b: Node | None) -> Node | None:
        if a is b:
            return a
        pair = _one(a), _one(b)
        return node("where", (condition, *pair), (), max((v.shape for v in pair), key=len))

    zero, terms = node("const", (), (0.0,)), list[_Term]()
    for term in first:
        other = next((t for t in second if _alike(term, t)), None)
        if other is None:
            terms.append(_gate(term, node("ne", (condition, zero))))
        else:
            second.remove(other)
            terms.append(_Term(term.base, *map(choose, term[1:], other[1:])))
    terms += [_gate(term, node("eq", (condition, zero))) for term in second]
    return _Affine(old, tuple(terms))


def _alike(term: _Term, other: _Term) -> bool:
    """Whether two terms differ in their factors alone; of rank one, in one factor."""
    if term.base is not None or other.base is not None:
        return term.base is other.base
    same = (a is not None and a is b for a, b in zip(term[1:3], other[1:3], strict=True))
    return any(same)


def _gate(term: _Term, flag: Node) -> _Term:
    """A term that is 0 where a flag is 0."""
    if term.base is not None:
        return term._replace(gate=_times(term.gate, flag))
    field = next((name for name in ("right", "left") if getattr(term, name)), "scale")
    value, zero = _one(getattr(term, field)), node("const", (), (0.0,))
    return term._replace(**{field: node("where", (flag, value, zero), (), value.shape)})


def _apply_gate(term: _Term, value: Node) -> Node:
    """The value of a term: 0 where its gate is 0."""
    if term.gate is None:
        return value
    return node("where", (term.gate, value, node("const", (), (0.0,))), (), value.shape)


def _spread(old: Node, args: list[_Value]) -> _Value:
    value = _node(args[0])
    if not value.shape:
        return _Affine(old, (_Term(scale=value),))
    return _Affine(old, (_Term(**{"right" if old.op == "tile" else "left": value}),))


_MATRICES: dict[str, Callable[[Node, list[_Value]], _Value]] = {
    "mul": _mul, "div": _div, "add": _add, "sub": _add, "neg": _add,
    "where": _where, "spread": _spread, "tile": _spread,
}  # fmt: skip


def _matrix(term: _Term, like: Node) -> Node:
    """One term, written out."""
    value, scale = term.base, term.scale
    left, right = term.left, term.right
    if right is not None:
        right, scale = _times(scale, right), None
    elif left is not None:
        left, scale = _times(scale, left), None
    for vector, op in ((left, "spread"), (right, "tile")):
        if vector is not None:
            wide = node(op, (vector,), (), like.shape)
            value = wide if value is None else node("mul", (value, wide), (), like.shape)
    if value is None:
        return node("spread", (_one(scale),), (), like.shape)
    return _apply_gate(
        term, value if scale is None else node("mul", (scale, value), (), like.shape)
    )


def _write_out(value: _Value) -> Node:
    """A value as one node."""
    if not isinstance(value, _Affine):
        return value
    return _total([_matrix(term, value.like) for term in value.terms])


def _reduce(old: Node, matrix: _Affine) -> Node:
    """A sum or mean of a matrix: over rows (``fold``), columns, or all of it."""
    if OPS[old.op].kind != "reduce" or old.op not in ("fold", "sum", "mean"):
        raise _NotAffineError
    like = matrix.like
    axes = [0] if old.op == "fold" else [1] if old.shape else [0, 1]
    total = _total([_sum_of_term(term, like, axes) for term in matrix.terms])
    if old.op != "mean":
        return total
    count = node("count", (), tuple(matrix_axes(like)[axis] for axis in axes[:1]))
    if len(axes) > 1:
        count = node("mul", (count, node("count", (), (matrix_axes(like)[1],))))
    return node("div", (total, count), (), total.shape)


def _sum_of_term(term: _Term, like: Node, axes: list[int]) -> Node:
    """The sum of one term over rows (0), columns (1), or both."""
    sides = (term.left, term.right)
    if term.base is None:
        summed = [_sum_of(sides[axis], like, axis) for axis in axes]
        factor = _times(term.scale, *summed)
        if len(axes) == 2:
            assert factor is not None, "a count at least"
            return factor
        rest = _times(factor, _along(sides[1 - axes[0]], like, 1 - axes[0]))
        assert rest is not None, "a vector at least"
        return rest
    axis = axes[0] if len(axes) == 1 else 1  # first over columns, then over rows
    inner = _matrix(_Term(term.base, *_only_side(sides, axis)), like)
    op, shape = ("fold", "sum")[axis], ((matrix_axes(like)[1 - axis],),)
    value = _times(sides[1 - axis], node(op, (inner,), (), shape))
    assert value is not None, "a product with the base"
    if len(axes) == 2:
        value = node("sum", (value,))
    scaled = _times(term.scale, value)
    assert scaled is not None, "a product with the base"
    return _apply_gate(term, scaled)


def _only_side(
    sides: tuple[Node | None, Node | None], axis: int
) -> tuple[Node | None, Node | None]:
    """The factors of one axis alone."""
    return (sides[0], None) if axis == 0 else (None, sides[1])
