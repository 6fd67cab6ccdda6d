"""Loop fission: a part over a matrix as several, each with operands that fit into registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from elman.lowered.groups import take_statements
from elman.lowered.types import (
    Accumulate,
    Affine,
    Let,
    Multiply,
    Op,
    Part,
    Ref,
    Statement,
    Store,
    Value,
)

MOST_COLUMN_SUMS = 2  # of a loop that takes four rows at once: they are in memory


def split_loop(part: Part, most: int) -> list[Part]:
    """Loops that do together what the one of a part over a matrix does: sums of rows first, at
    most so many in each, then the others.

    A loop without sums of columns can take several rows at once, which share what it loads for a
    column. It is split only where no loop computes again what another one does; values in memory
    are loaded again.
    """
    places = [
        place
        for place, statement in enumerate(part.body)
        if not isinstance(statement, Let | Multiply)
    ]
    row_sums = [place for place in places if _is_row_sum(part.body[place])]
    count = -(-len(row_sums) // most)
    groups = [
        row_sums[n * len(row_sums) // count : (n + 1) * len(row_sums) // count]
        for n in range(count)
    ]
    others = [place for place in places if place not in row_sums]
    statements = [part.body[place] for place in others]
    if any(isinstance(statement, Store) for statement in statements) or (
        [s.axis for s in statements if isinstance(s, Accumulate)].count("columns")
        > MOST_COLUMN_SUMS
    ):
        groups.append(others)
    elif groups:
        groups[-1] += others
    if len(groups) < 2:
        return [part]
    lets = [place for place, statement in enumerate(part.body) if isinstance(statement, Let)]
    needed = [_needed(part.body, lets, group) for group in groups]
    computed = [
        index for indices in needed for index in indices if _computes(part.body[lets[index]])
    ]
    if len(computed) > len({*computed}):
        return [part]
    products = [n for n, statement in enumerate(part.body) if isinstance(statement, Multiply)]
    groups[-1] = [*groups[-1], *products]
    return [
        replace(
            part,
            body=tuple(take_statements(part.body, sorted([*(lets[n] for n in indices), *group]))),
        )
        for indices, group in zip(needed, groups, strict=True)
    ]


def _is_row_sum(statement: Statement) -> bool:
    return isinstance(statement, Accumulate) and statement.axis == "rows"


def _computes(statement: Statement) -> bool:
    return isinstance(statement, Let) and isinstance(statement.value, Op | Affine)


def _refs(value: Value) -> Iterator[int]:
    if isinstance(value, Ref):
        yield value.index
    elif isinstance(value, Op | Affine):
        for arg in value.args:
            yield from _refs(arg)


def _needed(body: Sequence[Statement], lets: Sequence[int], places: Sequence[int]) -> set[int]:
    """Indices of the values that statements at some places are computed from."""
    needed: set[int] = set()
    open_places = list(places)
    while open_places:
        statement = body[open_places.pop()]
        if isinstance(statement, Let | Store | Accumulate):
            new = {*_refs(statement.value)} - needed
            needed |= new
            open_places += [lets[index] for index in new]
    return needed
