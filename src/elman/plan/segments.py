"""Order the values of one phase into segments: who waits for whom, and which products join."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from elman.ir.graph import Node, readers
from elman.ir.ops import OPS
from elman.ir.pair import loop_invariant
from elman.ir.types import GateBlock
from elman.plan.partition import below
from elman.plan.program import Acc, Bundle


@dataclass(frozen=True, eq=False)
class SegmentDraft:
    """One segment before values have buffers.

    Attributes:
        scalars: reductions and scalar arithmetic, in order.
        vectors: per gate block, its pointwise and product nodes in order.
        bundles: per gate block, the joined products.
    """

    scalars: tuple[Node, ...]
    vectors: Mapping[GateBlock, tuple[Node, ...]]
    bundles: Mapping[GateBlock, tuple[Bundle, ...]]


def full_reads(value: Node) -> tuple[Node, ...]:
    """Arguments of which a value reads all units, not only its own."""
    if value.op == "matmul":
        return (value.args[1],)
    whole = OPS[value.op].kind == "reduce" or value.over_units
    return tuple(arg for arg in value.args if arg.shape) if whole else ()


def _earliest(order: list[Node], floor: Mapping[Node, int]) -> dict[Node, int]:
    """Levels as soon as possible; ``floor`` pins some nodes from below."""
    level: dict[Node, int] = {}
    for value in order:
        full = full_reads(value)
        earliest = floor.get(value, 0)
        for arg in value.args:
            if arg in level:
                earliest = max(earliest, level[arg] + (arg in full))
        level[value] = earliest
    return level


def levels(order: list[Node], *, late_products: bool) -> dict[Node, int]:
    """The segment of each value: the highest of its arguments', one more after a full read.

    Forward as soon as possible: products of one operand are joined. With ``late_products``
    (backward) products
    move as late as their readers allow: products into one sum are joined. Everything else stays
        early.
    """
    early = _earliest(order, {})
    if not late_products or not early:
        return early
    last = max(early.values())
    used = readers(order)
    latest: dict[Node, int] = {}
    for value in reversed(order):
        limits = [latest[reader] - (value in full_reads(reader)) for reader in used.get(value, ())]
        latest[value] = min(limits, default=last)
    return _earliest(order, {value: latest[value] for value in order if value.op == "matmul"})


def _sunk(order: list[Node], level: Mapping[Node, int], roots: Collection[Node]) -> dict[Node, int]:
    """Levels where a value of one or two given ones is computed by its readers, not kept for them.

    To load what is given there costs no more than to store a value and to load it again. Scalars,
    of this phase too, cost nothing.
    """
    used = readers(order)
    given: dict[Node, frozenset[Node]] = {}
    found = dict(level)
    for value in order:
        pointwise = value.shape and value.op != "matmul" and not full_reads(value)
        vectors = [arg for arg in value.args if arg.shape]  # scalars stay at hand
        parts = [given.get(arg) if arg in level else frozenset((arg,)) for arg in vectors]
        if pointwise and value not in roots and None not in parts:
            whole = frozenset(v for part in parts for v in part or () if not loop_invariant(v))
            if len(whole) <= 2:
                given[value] = whole
    for value in reversed(order):
        readings = used.get(value, [])
        if value in given and not any(value in full_reads(reader) for reader in readings):
            found[value] = min((found[reader] for reader in readings), default=found[value])
    return found


def _apart(order: list[Node], level: Mapping[Node, int]) -> dict[Node, int]:
    """A segment for each operation: what a plan is without fusion.

    Scalars, and products, of one segment remain together, before its other operations.
    """
    found: dict[Node, int] = {}
    count = 0
    for index in range(max(level.values(), default=-1) + 1):
        mine = [value for value in order if level[value] == index]
        together = [value for value in mine if value.op == "matmul" or not value.shape]
        found.update(dict.fromkeys(together, count))
        count += bool(together)
        for value in mine:
            if value not in found:
                found[value] = count
                count += 1
    return found


def _single(vectors: tuple[Node, ...]) -> tuple[Bundle, ...]:
    """Each product by itself: what a plan is without merging."""
    return tuple(
        Bundle((value.args[1],), (Acc(value, (value,)),))
        for value in vectors
        if value.op == "matmul"
    )


def _joined(
    vectors: tuple[Node, ...], used: Mapping[Node, list[Node]], roots: Collection[Node]
) -> tuple[Bundle, ...]:
    """Join products: into one sum along k, with one operand along rows."""
    products = [value for value in vectors if value.op == "matmul"]
    inside = set(vectors)
    taken: set[Node] = set()
    accs: list[Acc] = []
    for value in vectors:
        if value.op != "lin":
            continue
        terms = tuple(
            arg
            for coef, arg in zip(value.coefs, value.args, strict=True)
            if coef == 1.0
            and arg.op == "matmul"
            and arg in inside
            and arg not in roots
            and used.get(arg, []) == [value]
            and value.args.count(arg) == 1  # v - v: the same product with two coefficients
        )
        if terms:
            accs.append(Acc(value, terms))
            taken.update(terms)
    accs.extend(Acc(value, (value,)) for value in products if value not in taken)
    place = {value: index for index, value in enumerate(vectors)}
    accs.sort(key=lambda acc: place[acc.terms[0]])
    groups: dict[tuple[Node, ...], list[Acc]] = {}
    for acc in accs:
        groups.setdefault(tuple(term.args[1] for term in acc.terms), []).append(acc)
    return tuple(Bundle(operands, tuple(members)) for operands, members in groups.items())


def draft(
    roots: Collection[Node],
    given: Collection[Node],
    *,
    late_products: bool = False,
    without: Collection[str] = (),
) -> tuple[list[SegmentDraft], dict[Node, int]]:
    """Cut a phase that computes ``roots`` from ``given`` values into segments.

    Args:
        roots, given: values.
        late_products: as for :func:`levels`.
        without: of ``spec.OPTIMIZATIONS``, what is left out.

    Returns:
        the segments in order, and the segment of every value computed in the phase.
    """
    order = [value for value in below(roots, given) if value not in given]
    level = levels(order, late_products=late_products)
    if "fusion" in without:
        level = _apart(order, level)
    else:
        level = _sunk(order, level, roots)
    used = readers(order)
    drafts: list[SegmentDraft] = []
    for index in range(max(level.values(), default=-1) + 1):
        mine = [value for value in order if level[value] == index]
        vectors: dict[GateBlock, list[Node]] = {}
        for value in mine:
            if value.shape:
                vectors.setdefault(value.shape[0][0], []).append(value)
        fixed = {gate_block: tuple(values) for gate_block, values in vectors.items()}
        bundles = {
            gate_block: _single(values) if "merging" in without else _joined(values, used, roots)
            for gate_block, values in fixed.items()
        }
        scalars = tuple(value for value in mine if not value.shape)
        drafts.append(SegmentDraft(scalars, fixed, bundles))
    return drafts, level
