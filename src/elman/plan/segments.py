"""Order the values of a phase into segments, and join products."""

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
    """Arguments of which a value reads all units (a reduction, a product), not only its own."""
    if value.op == "matmul":
        return (value.args[1],)
    reads_all = OPS[value.op].kind == "reduce" or value.over_units
    return tuple(arg for arg in value.args if arg.shape) if reads_all else ()


def _earliest(order: list[Node], floor: Mapping[Node, int]) -> dict[Node, int]:
    """ASAP levels; ``floor`` sets lower bounds."""
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

    Forward: as soon as possible, so that products of one operand are joined. With
    ``late_products`` (backward) products move as late as their readers allow, so that products into
    one sum are joined; everything else stays early.
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
    """Sink values with at most two sources into the segments of their readers.

    Loading the sources there costs no more than storing and loading the value. Scalars cost
    nothing.
    """
    used = readers(order)
    sources: dict[Node, frozenset[Node]] = {}
    sunk = dict(level)
    for value in order:
        pointwise = value.shape and value.op != "matmul" and not full_reads(value)
        vectors = [arg for arg in value.args if arg.shape]  # scalars stay at hand
        arg_sources = [sources.get(arg) if arg in level else frozenset((arg,)) for arg in vectors]
        if pointwise and value not in roots and None not in arg_sources:
            union = frozenset(
                v for source in arg_sources for v in source or () if not loop_invariant(v)
            )
            if len(union) <= 2:
                sources[value] = union
    for value in reversed(order):
        readings = used.get(value, [])
        if value in sources and not any(value in full_reads(reader) for reader in readings):
            sunk[value] = min((sunk[reader] for reader in readings), default=sunk[value])
    return sunk


def _apart(order: list[Node], level: Mapping[Node, int]) -> dict[Node, int]:
    """One segment per operation (the plan without fusion).

    Scalars, and products, of one segment remain together, before its other operations.
    """
    segment_of: dict[Node, int] = {}
    count = 0
    for index in range(max(level.values(), default=-1) + 1):
        mine = [value for value in order if level[value] == index]
        first = [value for value in mine if value.op == "matmul" or not value.shape]
        segment_of.update(dict.fromkeys(first, count))
        count += bool(first)
        for value in mine:
            if value not in segment_of:
                segment_of[value] = count
                count += 1
    return segment_of


def _single(vectors: tuple[Node, ...]) -> tuple[Bundle, ...]:
    """One group per product (the plan without merging)."""
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
    merged: set[Node] = set()
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
            merged.update(terms)
    accs.extend(Acc(value, (value,)) for value in products if value not in merged)
    place = {value: index for index, value in enumerate(vectors)}
    accs.sort(key=lambda acc: place[acc.terms[0]])
    groups: dict[tuple[Node, ...], list[Acc]] = {}
    for acc in accs:
        groups.setdefault(tuple(term.args[1] for term in acc.terms), []).append(acc)
    return tuple(Bundle(operands, tuple(members)) for operands, members in groups.items())


def draft(
    roots: Collection[Node],
    available: Collection[Node],
    *,
    late_products: bool = False,
    without: Collection[str] = (),
) -> tuple[list[SegmentDraft], dict[Node, int]]:
    """Cut a phase that computes ``roots`` from ``available`` values into segments.

    Args:
        roots, available: values.
        late_products: as for :func:`levels`.
        without: of ``spec.OPTIMIZATIONS``, what is left out.

    Returns:
        the segments in order, and the segment of every value computed in the phase.
    """
    order = [value for value in below(roots, available) if value not in available]
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
