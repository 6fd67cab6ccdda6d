"""Operands of products as pairs of bfloat16 numbers, rounded once per block of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from elman.engines.c.spelling.values import in_groups
from elman.lowered.types import Access, Part
from elman.plan.schedule import Blocks


class RoundedOperands:
    """Memory of the rounded operands of a part's products, for the rows of a block.

    Args:
        part: the part whose products read them.
        blocks: constants of blocking.
        lanes: elements of a vector; an element holds a pair of units.
        start: C text of the address of the worker's memory for them.

    Attributes:
        elements: size of that memory.
    """

    def __init__(self, part: Part, blocks: Blocks, lanes: int, start: str = "") -> None:
        self._start, self._groups = start, part.groups
        self._places: dict[Access, tuple[int, int, int]] = {}  # first element, row, of a group
        self.elements = 0
        for access in dict.fromkeys(a for product in part.products for a in product.operands):
            row = -(-access.units // (2 * lanes)) * lanes
            row += lanes if row % blocks.conflicting_row == 0 else 0  # see Blocks
            self._places[access] = self.elements, row, blocks.rows * row
            self.elements += blocks.rows * row * (part.groups if access.group else 1)

    def operand(self, access: Access) -> tuple[str, str]:
        """C text of an operand's address at a block's first row, and of its row stride (pairs)."""
        first, row, size = self._places[access]
        group = f" + g * {size}" if access.group else ""
        return f"({self._start} + {first}{group})", str(row)

    def lines(self, operand: Callable[[Access], tuple[str, str]]) -> list[str]:
        """C lines that round the operands of a block's m rows; ``operand`` gives addresses."""
        lines: list[str] = []
        for access in self._places:
            (source, stride), (target, row) = operand(access), self.operand(access)
            call = f"round_rows(m, {source}, {stride}, {access.units}, {target}, {row});"
            lines += in_groups(self._groups if access.group else 1, [call])
        return lines


class RoundedMemory:
    """A worker's memory for the rounded operands of any part of a direction, after its scalars.

    Workers that share units round the same rows, each for itself: 1 to 3 % of a step.

    Args:
        parts: parts of the direction; none if nothing is rounded.
        blocks, lanes: see :class:`RoundedOperands`.
        before: C text that adds the elements of the memory before the worker's scalars.
    """

    def __init__(self, parts: Iterable[Part], blocks: Blocks, lanes: int, before: str) -> None:
        of_parts = [RoundedOperands(part, blocks, lanes).elements for part in parts]
        self._elements, self._before = max(of_parts, default=0), before

    @property
    def start(self) -> str:
        """C text of its address; empty if there is none."""
        if not self._elements:
            return ""
        return f"sc - (0{self._before}) + c->scalars_size - {self._elements}"

    def size(self) -> list[str]:
        """C line that adds it to the size of a worker's scalars, in whole cache lines."""
        if not self._elements:
            return []
        return [f"    c->scalars_size = (c->scalars_size + 15) / 16 * 16 + {self._elements};"]
