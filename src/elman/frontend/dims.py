"""Splitting of dims: numbers that a formula cuts, and groups of units.

A number is one gate block, and gate blocks are what is split and joined: 8 becomes 4+4. A formula
that needs a part of one raises :class:`UncutError`; it is traced again with that number cut,
wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, groupby, pairwise

from elman.errors import ShapeError, TraceError, VerifyError
from elman.ir.graph import Graph
from elman.ir.ops import OPS
from elman.ir.types import Dim, GateBlock, Shape, gate_block_size, names_in, show_dim

Cuts = Mapping[int, tuple[int, ...]]  # a number -> the parts it is cut into


class UncutError(VerifyError):
    """Signals that a number has to be split and the formula traced again; never shown to users."""

    def __init__(self, cuts: Cuts) -> None:
        super().__init__(f"numbers to be cut: {dict(cuts)}")
        self.cuts = cuts


def cut(dim: Dim, cuts: Cuts) -> Dim:
    """A dim with its numbers cut, parts of parts too: 8 with {8: (4, 4), 4: (1, 3)} is 1+3+1+3."""
    gate_blocks: list[GateBlock] = []
    for gate_block in dim:
        pieces = cuts.get(gate_block) if isinstance(gate_block, int) else None
        gate_blocks.extend([gate_block] if pieces is None else cut(pieces, cuts))
    return tuple(gate_blocks)


def cut_shape(shape: Shape, cuts: Cuts) -> Shape:
    """A shape with its numbers cut."""
    return tuple(cut(dim, cuts) for dim in shape)


def _runs(dim: Dim) -> list[tuple[str | None, tuple[int, ...]]]:
    """Runs of a dim: single names, and the numbers between them."""
    runs: list[tuple[str | None, tuple[int, ...]]] = []
    for number, gate_blocks in groupby(dim, lambda gate_block: isinstance(gate_block, int)):
        if number:
            sizes = (size for size in gate_blocks if isinstance(size, int))
            runs.append((None, tuple(sizes)))
        else:
            runs.extend((show_dim((gate_block,)), ()) for gate_block in gate_blocks)
    return runs


def check_cut(left: Shape, right: Shape) -> None:
    """Raise UncutError if two shapes become equal once some of their numbers are split."""
    cuts: dict[int, tuple[int, ...]] = {}
    if len(left) != len(right):
        return
    for left_dim, right_dim in zip(left, right, strict=True):
        left_runs, right_runs = _runs(left_dim), _runs(right_dim)
        if len(left_runs) != len(right_runs):
            return
        for (name, left_numbers), (like, right_numbers) in zip(left_runs, right_runs, strict=True):
            if name != like or sum(left_numbers) != sum(right_numbers):
                return
            ends = {*accumulate(left_numbers), *accumulate(right_numbers)}
            for number, pieces in (
                *_cut_numbers(left_numbers, ends),
                *_cut_numbers(right_numbers, ends),
            ):
                cuts.setdefault(number, pieces)
    if cuts:
        raise UncutError(cuts)


def _cut_numbers(numbers: tuple[int, ...], ends: set[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Numbers with boundaries inside, each with the pieces between them."""
    for number, last in zip(numbers, accumulate(numbers), strict=True):
        inside = sorted(end for end in ends if last - number < end <= last)
        if len(inside) > 1:
            yield number, tuple(b - a for a, b in pairwise([last - number, *inside]))


def check_names(graph: Graph) -> None:
    """Raise TraceError, at the user's line, where groups are counted by a dim that no argument of
    the formula has."""
    declared = {name for leaf in graph.leaves for name in names_in(leaf.shape)}
    for value in graph.walk():
        for name in sorted(names_in(value.shape) - declared):
            raise TraceError(
                f"groups={name!r}: no argument of the cell has a dim {name}",
                f'declare what has one number for each group: weights="a[{name}]"',
                at=value.where,
            )


def check_groups(graph: Graph, sizes: Mapping[str, int], heads: int = 1) -> None:
    """Raise ShapeError, at the user's line, where a dim is not a multiple of the groups in it.

    Args:
        graph: of all heads.
        sizes: of the named dims; with heads, of one head's part.
        heads: how many there are.
    """
    of_head = f" in each of {heads} heads" if heads > 1 else ""
    for value in graph.walk():
        kind = OPS[value.op].kind
        if kind not in ("reduce", "spread"):
            continue
        vector, groups = (value, value.args[0]) if kind == "spread" else (value.args[0], value)
        if not groups.shape:
            continue
        for gate_block, count in zip(vector.shape[0], groups.shape[0], strict=True):
            size, number = gate_block_size(gate_block, sizes), gate_block_size(count, sizes)
            if not number or size % number:
                number_text = count if isinstance(count, int) else f"{count} = {number}"
                units = f"{gate_block} = {size}{of_head}"
                raise ShapeError(
                    f"{units} is not a multiple of its {number_text} groups",
                    f"{gate_block} = {-(-size // number) * number}{of_head} is one"
                    if number
                    else "",
                    at=value.where,
                )
