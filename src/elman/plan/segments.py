"""Order the values of a phase into segments, and join products."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from elman.ir.graph import Node, readers
from elman.ir.ops import ACCUMULATED, OPS, SPREADS
from elman.ir.pair import loop_invariant
from elman.ir.types import GateBlock, is_matrix
from elman.plan.partition import below
from elman.plan.program import Acc, Bundle

_CHEAP = 8.0  # elementwise operations; an op of a matrix that costs as many is not repeated
_SOURCES = 2  # most matrices that a repeated value may read


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


@dataclass(frozen=True, eq=False)
class Draft:
    """A phase cut into segments.

    Attributes:
        segments: in order.
        level: the (first) segment of every value computed in the phase.
        repeated: the segments of each value that several segments compute and none stores.
    """

    segments: list[SegmentDraft]
    level: dict[Node, int]
    repeated: Mapping[Node, frozenset[int]]


def accumulates(value: Node) -> bool:
    """Whether a value is a sum over a matrix per sample, taken in the pass that computes its
    argument: it is complete at the end of that segment."""
    return value.op in ACCUMULATED and len(value.args) == 1 and is_matrix(value.args[0])


def is_complete_at_end(value: Node) -> bool:
    """True if no unit of a value can be read before the end of its segment."""
    return value.op == "bmm" or accumulates(value)


def full_reads(value: Node) -> tuple[Node, ...]:
    """Arguments of which a value reads all units (a reduction, a product), not only its own, or
    that are complete only at the end of their segment."""
    if value.op == "matmul":
        return (value.args[1],)
    reads_all = value.op == "bmm" or OPS[value.op].kind == "reduce" or value.over_units
    if accumulates(value):
        reads_all = False
    complete = (arg for arg in value.args if is_complete_at_end(arg) or (reads_all and arg.shape))
    return tuple(dict.fromkeys(complete))


def part_block(value: Node) -> GateBlock | None:
    """The gate block over whose units a value is computed; None for arithmetic on scalars."""
    vector = value.args[0] if accumulates(value) else value
    return vector.shape[0][0] if vector.shape else None


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
    """The segment of each value: the last segment of its arguments, one later after a full read.

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

    Loading the sources there costs no more than storing and loading the value (LEM's backward has 1
    H of scratch instead of 4). Scalars cost nothing.
    """
    used = readers(order)
    sources: dict[Node, frozenset[Node]] = {}
    sunk = dict(level)
    for value in order:
        pointwise = value.shape and value.op != "matmul" and not full_reads(value)
        vectors = [arg for arg in value.args if arg.shape]  # scalars stay in registers
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


def _repeated(
    order: list[Node], level: Mapping[Node, int], roots: Collection[Node]
) -> dict[Node, frozenset[int]]:
    """Segments that recompute a cheap matrix, which is then not stored.

    Its operands include at most two matrices, all in memory anyway: ``a * S``, ``S + outer(k, v)``.
    """
    sources: dict[Node, frozenset[Node]] = {}
    stored = {arg for value in order for arg in full_reads(value)}
    for value in order:
        op = OPS[value.op]
        cheap = (op.kind == "pointwise" or value.op in SPREADS) and op.cost < _CHEAP
        if not cheap or value in roots or value in stored or not is_matrix(value):
            continue
        matrices = [arg for arg in value.args if is_matrix(arg)]
        if all(arg not in level or arg in sources for arg in matrices):
            read = [sources.get(arg, frozenset((arg,))) for arg in matrices]
            if len(union := frozenset[Node]().union(*read)) <= _SOURCES:
                sources[value] = union
    used = readers(order)
    places: dict[Node, frozenset[int]] = {}
    for value in reversed(order):
        if value in sources:
            read = [places.get(r, frozenset((level[r],))) for r in used.get(value, ())]
            places[value] = frozenset[int]().union(*read) or frozenset((level[value],))
    return places


def _apart(order: list[Node], level: Mapping[Node, int]) -> dict[Node, int]:
    """One segment per operation (the plan without fusion).

    Scalars, and products, of one segment remain together, before its other operations; but a sum
    over a matrix follows that matrix.
    """
    segment_of: dict[Node, int] = {}
    count = 0
    for index in range(max(level.values(), default=-1) + 1):
        mine = [value for value in order if level[value] == index]
        first = [v for v in mine if v.op == "matmul" or not (v.shape or accumulates(v))]
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
) -> Draft:
    """Cut a phase that computes ``roots`` from ``available`` values into segments.

    Args:
        roots, available: values.
        late_products: see :func:`levels`.
        without: names of ``spec.OPTIMIZATIONS`` that are left out.
    """
    order = [value for value in below(roots, available) if value not in available]
    level = levels(order, late_products=late_products)
    repeated: dict[Node, frozenset[int]] = {}
    if "fusion" in without:
        level = _apart(order, level)
    else:
        level = _sunk(order, level, roots)
        repeated = _repeated(order, level, roots)
        level |= {value: min(places) for value, places in repeated.items()}
    used = readers(order)
    drafts: list[SegmentDraft] = []
    for index in range(max(level.values(), default=-1) + 1):
        mine = [v for v in order if index in repeated.get(v, (level[v],))]
        vectors: dict[GateBlock, list[Node]] = {}
        for value in mine:
            block = part_block(value)
            if block is not None:
                vectors.setdefault(block, []).append(value)
        fixed = {gate_block: tuple(values) for gate_block, values in vectors.items()}
        bundles = {
            gate_block: _single(values) if "merging" in without else _joined(values, used, roots)
            for gate_block, values in fixed.items()
        }
        scalars = tuple(value for value in mine if part_block(value) is None)
        drafts.append(SegmentDraft(scalars, fixed, bundles))
    return Draft(drafts, level, repeated)
