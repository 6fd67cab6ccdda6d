"""Roll parts whose bodies are copies of one another, as those of heads are, into a loop.

Part(body = n0 = tanh(tape[0:8]), n1 = tanh(tape[8:16]), n2 = tanh(tape[16:24]))
->  Part(groups = 3, body = n = tanh(tape[0:8] + g * 8))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any

from elman.lowered.types import (
    Acc,
    Access,
    Accumulate,
    Across,
    Let,
    Load,
    Part,
    Phase,
    Prefetch,
    Product,
    Ref,
    Statement,
    Store,
    Value,
)

_PRODUCT = 10  # statements that are compiled as fast as the calls of one product
Key = tuple[int, int]  # of an accumulation: product, index


def roll(part: Part, least: int) -> Part:
    """The part as a loop over groups, if it consists of independent copies at equal distances, and
    that saves so many statements: fewer compile in no time, and joined products may be faster."""
    if any(any(product.spikes) for product in part.products):
        return part  # lists of ones are made per operand, before its product
    components = _components(part.body)
    count = len(components)
    for size in (k for k in range(1, count // 2 + 1) if count % k == 0):
        step = count // size  # copies
        neighbours = [components[k * size : (k + 1) * size] for k in range(step)]
        for copies in (neighbours, [components[k::step] for k in range(step)]):
            rolled = _roll(part, [sorted(chain(*places)) for places in copies])
            if rolled is not None:
                length = len(rolled.body) + _PRODUCT * len(rolled.products)
                return rolled if (rolled.groups - 1) * length >= least else part
    return part


def _roll(part: Part, places: Sequence[Sequence[int]]) -> Part | None:
    """The part as a loop over the statements at some places, if it can be one."""
    copies = [_Copy(part, list(take_statements(part.body, each))) for each in places]
    if len({(len(copy.accs), copy.length) for copy in copies}) > 1 or _shared(part, copies):
        return None
    for order in (copies, copies[::-1]):
        if not _overwritten(order):
            rolled = _rolled(order[0].parts(), [copy.parts() for copy in order[1:]])
            if rolled is not None:
                products, body = rolled
                return Part(part.gate_block, products, body, len(order))
    return None


def unrolled(part: Part) -> Iterator[Part]:
    """The part of each group."""
    for group in range(part.groups):
        yield replace(_shifted(part, group), groups=1)


def unrolled_phase(phase: Phase) -> Phase:
    """A phase without loops over groups."""
    segments = [
        replace(segment, parts=tuple(part for each in segment.parts for part in unrolled(each)))
        for segment in phase.segments
    ]
    return replace(phase, segments=tuple(segments))


def _shifted(value: Any, group: int) -> Any:
    if isinstance(value, Access):
        return replace(value, offset=value.offset + group * value.group, group=0)
    if isinstance(value, tuple):
        return tuple(_shifted(item, group) for item in value)  # pyright: ignore
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: _shifted(getattr(value, f.name), group) for f in fields(value)}
        return replace(value, **changed)
    return value


def _values(value: Value) -> Iterator[Value]:
    """A value and all below it."""
    yield value
    for arg in getattr(value, "args", ()):
        yield from _values(arg)


def values_of(statement: Statement) -> Iterator[Value]:
    """The value that a statement computes, and all below it."""
    computes = isinstance(statement, Let | Store | Accumulate)
    return _values(statement.value) if computes else iter(())


def _components(body: Sequence[Statement]) -> list[list[int]]:
    """Places of the statements that hang together by registers, in order of their first."""
    lets = [place for place, statement in enumerate(body) if isinstance(statement, Let)]
    roots = list(range(len(body)))

    def root(place: int) -> int:
        while roots[place] != place:
            place = roots[place]
        return place

    loaded: dict[Access, int] = {}
    for place, statement in enumerate(body):
        for value in values_of(statement):
            if isinstance(value, Ref):
                roots[root(place)] = root(lets[value.index])
            elif isinstance(value, Load):
                loaded[value.access] = place
        if isinstance(statement, Store):
            loaded[statement.access] = place
        if isinstance(statement, Prefetch):  # with what is loaded or stored there
            roots[root(place)] = root(loaded.get(statement.access, place))
    by_root: dict[int, list[int]] = {}
    for place in range(len(body)):
        by_root.setdefault(root(place), []).append(place)
    return sorted(by_root.values())


def take_statements(body: Sequence[Statement], places: Sequence[int]) -> Iterator[Statement]:
    """Statements at some places, registers counted anew."""
    lets = [place for place, statement in enumerate(body) if isinstance(statement, Let)]
    index = {lets.index(place): n for n, place in enumerate(p for p in places if p in {*lets})}

    def renamed(value: Any) -> Any:
        return Ref(index[value.index]) if isinstance(value, Ref) else value

    for place in places:
        statement = body[place]
        if isinstance(statement, Let | Store | Accumulate):
            yield replace(statement, value=_with_leaves(statement.value, renamed))
        else:
            yield statement


def _with_leaves(value: Any, renamed: Callable[[Any], Any]) -> Any:
    """A value whose leaves are others."""
    if getattr(value, "args", None):
        return replace(value, args=tuple(_with_leaves(arg, renamed) for arg in value.args))
    return renamed(value)


class _Copy:
    """One of the independent bodies of a part."""

    def __init__(self, part: Part, body: Sequence[Statement]) -> None:
        self._part, self._body, self.length = part, body, len(body)
        accs = (v for statement in body for v in values_of(statement) if isinstance(v, Acc))
        self.accs: list[Key] = [*dict.fromkeys((acc.product, acc.index) for acc in accs)]
        self._products = [*dict.fromkeys(product for product, _ in self.accs)]

    def parts(self) -> tuple[tuple[Product, ...], tuple[Statement, ...]]:
        """Its products and statements, accumulations counted anew."""
        index: dict[Key, Acc] = {}
        products: list[Product] = []
        for number in self._products:
            old = self._part.products[number]
            chosen = [key for key in self.accs if key[0] == number]
            index.update({key: Acc(len(products), n) for n, key in enumerate(chosen)})
            products.append(replace(old, accs=tuple(old.accs[i] for _, i in chosen)))

        def renamed(value: Any) -> Any:
            return index[value.product, value.index] if isinstance(value, Acc) else value

        body = tuple(
            replace(s, value=_with_leaves(s.value, renamed)) if isinstance(s, Let | Store) else s
            for s in self._body
        )
        return tuple(products), body

    def loads(self) -> set[tuple[Any, int]]:
        """Memory that it reads."""
        columns = [v.access for s in self._body for v in values_of(s) if isinstance(v, Load)]
        columns += [v.column for s in self._body for v in values_of(s) if isinstance(v, Across)]
        columns += [a for number in self._products for a in self._part.products[number].operands]
        return {(a.region, a.offset) for a in columns}

    def stores(self) -> set[tuple[Any, int]]:
        """Memory that it writes."""
        stores = (s.access for s in self._body if isinstance(s, Store))
        return {(a.region, a.offset) for a in stores}


def _shared(part: Part, copies: Sequence[_Copy]) -> bool:
    """Whether an accumulation is read by no copy, or by several."""
    keys = [key for copy in copies for key in copy.accs]
    accs = [(p, i) for p, product in enumerate(part.products) for i in range(len(product.accs))]
    return sorted(keys) != accs


def _overwritten(copies: Sequence[_Copy]) -> bool:
    """Whether a copy stores where a later one loads: a body loads all before it stores."""
    stores: set[tuple[Any, int]] = set()
    for copy in copies:
        if stores & copy.loads():
            return True
        stores |= copy.stores()
    return False


def _rolled(first: Any, others: Sequence[Any]) -> Any:
    """The first of some like values with a distance in each access; None if they are not alike."""
    if isinstance(first, Access):
        step = others[0].offset - first.offset
        for number, other in enumerate(others, 1):
            if replace(other, offset=first.offset) != first:
                return None
            if other.offset != first.offset + number * step:
                return None
        return replace(first, group=step)
    if isinstance(first, tuple):
        if any(len(other) != len(first) for other in others):
            return None
        items = [_rolled(a, [other[k] for other in others]) for k, a in enumerate(first)]
        return None if any(item is None for item in items) else tuple(items)
    if is_dataclass(first) and not isinstance(first, type):
        if any(type(other) is not type(first) for other in others):
            return None
        changed: dict[str, Any] = {}
        for field in fields(first):
            value = getattr(first, field.name)
            if value is None:
                if any(getattr(other, field.name) is not None for other in others):
                    return None
                continue
            new = _rolled(value, [getattr(other, field.name) for other in others])
            if new is None:
                return None
            changed[field.name] = new
        return replace(first, **changed)
    return first if all(_same(first, other) for other in others) else None


def _same(a: Any, b: Any) -> bool:
    """Whether two numbers or names are equal, floats by their bits."""
    return a.hex() == b.hex() if isinstance(a, float) and isinstance(b, float) else a == b
