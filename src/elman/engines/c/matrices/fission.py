"""Loop fission: a part over a matrix as several, each with operands that fit into registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from elman.lowered.groups import take_statements, values_of
from elman.lowered.types import Accumulate, Affine, Let, Op, Part, Ref, Statement, Store

MOST_COLUMN_SUMS = 2  # of a loop that takes four rows at once: they are in memory


def split_loop(part: Part, most: int) -> list[Part]:
    """Split the loop of a part over a matrix: sums of rows come first, the rest in a last loop.

    A loop without sums of columns can take several rows at once, which share what it loads for a
    column. No loop computes again what another one does, or the part stays whole; values in memory
    are loaded again. Products of two matrices follow all loops, and are left out.

    Args:
        most: sums of rows in a loop.
    """
    body = part.body
    places = [place for place, s in enumerate(body) if isinstance(s, Store | Accumulate)]
    row_sums = [place for place in places if _sum_axis(body[place]) == "rows"]
    rest = [place for place in places if place not in row_sums]
    count = -(-len(row_sums) // most)
    bounds = [n * len(row_sums) // max(1, count) for n in range(count + 1)]
    groups = [row_sums[first:end] for first, end in pairwise(bounds)]
    if groups and _joins_row_sums([body[place] for place in rest]):
        groups[-1] += rest
    else:
        groups.append(rest)
    lets = [place for place, statement in enumerate(body) if isinstance(statement, Let)]
    dependencies = [_dependencies(body, lets, group) for group in groups]
    operations = [n for each in dependencies for n in each if _is_operation(body[lets[n]])]
    if len(groups) == 1 or len(operations) > len({*operations}):
        return [part]
    loops = (
        sorted([*(lets[n] for n in each), *group])
        for each, group in zip(dependencies, groups, strict=True)
    )
    return [replace(part, body=tuple(take_statements(body, loop))) for loop in loops]


def _sum_axis(statement: Statement) -> str | None:
    return statement.axis if isinstance(statement, Accumulate) else None


def _joins_row_sums(statements: Sequence[Statement]) -> bool:
    """Whether statements are a few sums, and nothing is stored at each element."""
    stores = any(isinstance(statement, Store) for statement in statements)
    return not stores and [*map(_sum_axis, statements)].count("columns") <= MOST_COLUMN_SUMS


def _is_operation(statement: Statement) -> bool:
    return isinstance(statement, Let) and isinstance(statement.value, Op | Affine)


def _dependencies(
    body: Sequence[Statement], lets: Sequence[int], places: Sequence[int]
) -> set[int]:
    """Indices of the values that statements at some places are computed from."""
    indices: set[int] = set()
    pending = list(places)
    while pending:
        refs = {v.index for v in values_of(body[pending.pop()]) if isinstance(v, Ref)}
        pending += [lets[index] for index in refs - indices]
        indices |= refs
    return indices
