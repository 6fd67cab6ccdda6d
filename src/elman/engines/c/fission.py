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
    dependencies = [_dependencies(part.body, lets, group) for group in groups]
    operations = [n for each in dependencies for n in each if _is_operation(part.body[lets[n]])]
    if len(operations) > len({*operations}):
        return [part]
    products = [n for n, statement in enumerate(part.body) if isinstance(statement, Multiply)]
    groups[-1] = [*groups[-1], *products]
    loops = (
        sorted([*(lets[n] for n in each), *group])
        for each, group in zip(dependencies, groups, strict=True)
    )
    return [replace(part, body=tuple(take_statements(part.body, places))) for places in loops]


def _is_row_sum(statement: Statement) -> bool:
    return isinstance(statement, Accumulate) and statement.axis == "rows"


def _is_operation(statement: Statement) -> bool:
    return isinstance(statement, Let) and isinstance(statement.value, Op | Affine)


def _refs(value: Value) -> Iterator[int]:
    if isinstance(value, Ref):
        yield value.index
    elif isinstance(value, Op | Affine):
        for arg in value.args:
            yield from _refs(arg)


def _dependencies(
    body: Sequence[Statement], lets: Sequence[int], places: Sequence[int]
) -> set[int]:
    """Indices of the values that statements at some places are computed from."""
    indices: set[int] = set()
    pending = list(places)
    while pending:
        statement = body[pending.pop()]
        if isinstance(statement, Let | Store | Accumulate):
            new = {*_refs(statement.value)} - indices
            indices |= new
            pending += [lets[index] for index in new]
    return indices
