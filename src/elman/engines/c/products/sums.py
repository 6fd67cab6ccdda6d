"""Weight gradients: Σ over the rows of a chunk of outer products, of vectors, of scalars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

from elman.engines.c.compilation.isa import Isa
from elman.engines.c.products.gathering import gathered_sum
from elman.engines.c.products.tiles import WIDEST, tile_rows
from elman.engines.c.spelling.values import Spelling
from elman.lowered.layout import Layout
from elman.lowered.types import Access, Matrix, RowSum
from elman.plan.schedule import Blocks


class SumPrinter(Spelling):
    """Prints the sums after each chunk of the backward.

    Each worker owns rows of the gradients, so nothing is combined afterwards. A right operand of
    many products is copied into panels once; left operands are read in place, a row per k, because
    copying them costs 4 % of a step and gains nothing at any size.

    Args:
        layout, sums: the sums and the layout of their operands.
        isa, blocks: instruction set of the tiles, constants of blocking.
        tiled: whether tiles are used.
    """

    def __init__(
        self, layout: Layout, sums: Sequence[RowSum], isa: Isa, blocks: Blocks, *, tiled: bool
    ) -> None:
        super().__init__(layout)
        self.isa, self.blocks, self.tiled = isa, blocks, tiled
        self.outer = [(term, term.right) for term in sums if term.right is not None]
        self.rest = [term for term in sums if term.right is None]
        self.lefts: dict[Access, list[Access]] = {}  # right operand -> its left ones
        for term, right in self.outer:
            self.lefts.setdefault(right, []).append(term.left)
        self.pairs = isa.pairs and tiled
        spikes = {right for term, right in self.outer if term.spikes and tiled}
        self.listed = [
            r for r, ls in self.lefts.items() if gathered_sum(r, r in spikes, ls, blocks)
        ]
        self.bases = dict(
            self.base(access)
            for term in sums
            for access in (term.left, term.right)
            if access is not None
        )

    def padded(self, access: Access) -> int:
        """Units of a vector in whole vectors."""
        return -(-access.units // self.layout.lanes) * self.layout.lanes

    @cached_property
    def packed(self) -> dict[Access, int]:
        """Right operands that are copied into panels, and first element per row of the chunk.

        Operands of few products are read in place, if they are whole vectors.
        """
        offsets: dict[Access, int] = {}
        width = 0
        for right, lefts in self.lefts.items() if self.tiled else ():
            if (
                self.pairs
                or sum(a.units for a in lefts) > self.blocks.copied_lefts
                or right.units % self.layout.lanes
            ):
                offsets[right] = width
                width += self.padded(right)
        return offsets

    @cached_property
    def paired(self) -> dict[Access, tuple[int, int]]:
        """Left operands that are rounded: first element of their pairs of rows (per pair of rows of
        the chunk, after the right operands), and the length of a row."""
        places: dict[Access, tuple[int, int]] = {}
        at = sum(map(self.padded, self.packed))
        for left in dict.fromkeys(term.left for term, _ in self.outer) if self.pairs else ():
            row = self.padded(left)
            row += self.layout.lanes if row % self.blocks.conflicting_row == 0 else 0
            places[left] = at, row
            at += row
        return places

    @cached_property
    def rounded(self) -> dict[Access, tuple[int, int]]:
        """Left operands whose rounded rows are added up where a right operand has few ones: first
        element per row of the chunk, after all pairs, and the length of a row."""
        lefts = [left for right in self.listed if self.pairs for left in self.lefts[right]]
        rows = [(left, self.padded(left)) for left in dict.fromkeys(lefts)]
        starts = accumulate((row for _, row in rows), initial=0)
        return {left: (start, row) for (left, row), start in zip(rows, starts)}

    @property
    def _copied(self) -> int:
        """Elements of all copied operands, per copied row."""
        return sum(map(self.padded, self.packed)) + sum(row for _, row in self.paired.values())

    @property
    def _copied_rows(self) -> str:
        """C text of the number of rows of copied operands."""
        return "((rows + 1) / 2)" if self.pairs else "rows"

    @property
    def regions(self) -> list[tuple[str, str]]:
        """Workspace: packed right operands; lists of ones and a panel of left operands of each
        worker."""
        lists = " + ".join(f"lists_size(rows, {access.units})" for access in self.listed)
        panel = f"c->workers * rows * {WIDEST} * VL" if self.listed else "0"
        return [
            ("right", f"{self._copied_rows} * {self._copied}{self._rounded_size()}"),
            ("lists", f"c->workers * ({lists or 0})"),
            ("panel", panel),
        ]

    def tiles(self) -> set[str]:
        """Names of the tiles that are called."""
        names: set[str] = set()
        for _, right in self.outer if self.tiled else ():
            full, last = divmod(self.padded(right) // self.layout.lanes, WIDEST)
            names.update(f"across{width}" for width in (WIDEST * (full > 0), last) if width)
        return names | ({f"picked{WIDEST}"} if self.listed else set())

    def pack(self) -> list[str]:
        """Copy right operands into panels shared by all workers."""
        lines = ["long lists = 0; (void)lists;"] if self.listed else []
        for number, right in enumerate(self.listed):
            units = right.units
            lines += [
                f"T *const lists{number} = c->lists + lists + w->id * lists_size(rows, {units});",
                f"lists += c->workers * lists_size(rows, {units});",
                f"const int few{number} = list_ones({self._rows(right)}, {units}, rows,"
                f" lists{number});",
            ]
        for right, offset in self.packed.items():
            vectors = self.padded(right) // self.layout.lanes
            test = f"if (!few{self.listed.index(right)}) " if right in self.listed else ""
            pack = "pair_panels" if self.pairs else "pack_right"
            lines.append(
                f"{test}{pack}(w, c->right + {offset} * {self._copied_rows}, {self._rows(right)},"
                f" {vectors}, {right.units}, rows);"
            )
        for left, (offset, row) in self.paired.items():
            vectors = self.padded(left) // self.layout.lanes
            lines.append(
                f"pair_rows(w, c->right + {offset} * {self._copied_rows}, {row},"
                f" {self._rows(left)}, {vectors}, {left.units}, rows);"
            )
        for left, (offset, row) in self.rounded.items():
            rights = [right for right in self.listed if left in self.lefts[right]]
            test = " || ".join(f"few{self.listed.index(right)}" for right in rights)
            lines.append(
                f"if ({test}) round_left(w, {self._rounded_at(offset)}, {row}, {self._rows(left)},"
                f" {self.padded(left) // self.layout.lanes}, {left.units}, rows);"
            )
        return lines

    def _rounded_size(self) -> str:
        """C text that adds the elements of :attr:`rounded`."""
        rows = sum(row for _, row in self.rounded.values())
        return f" + rows * {rows}" if rows else ""

    def _rounded_at(self, offset: int) -> str:
        """C text of the address of rows of :attr:`rounded`."""
        return f"c->right + {self._copied} * {self._copied_rows} + {offset} * rows"

    def _rows(self, access: Access) -> str:
        """C text of a column's address in the chunk's first row, and of its stride."""
        return f"{self.at(access, '0')}, {self.stride(access)}"

    def products(self) -> list[str]:
        """Accumulate this worker's rows of every matrix sum."""
        if not self.tiled:
            return [self._plain(term, right) for term, right in self.outer]
        # workers take shares by rotation, so that the same one does not always get the larger; all
        # terms of one sum share a turn, so that no worker waits for others between them
        targets = dict.fromkeys(term.target for term, _ in self.outer)
        turns = {target: turn for turn, target in enumerate(targets)}
        return [self._product(term, right, turns[term.target]) for term, right in self.outer]

    def _target(self, term: RowSum) -> str:
        """C text of the address of a matrix sum, of its row length, and of the condition for adding
        to its earlier value."""
        assert isinstance(term.target, Matrix)
        base, row = self.matrix(term.target)
        return f"{base}, {row}, {'!first' if term.first else '1'}"

    def _plain(self, term: RowSum, right: Access) -> str:
        operands = [f"{self._rows(access)}, {access.units}" for access in (term.left, right)]
        return f"plain_outer(w, {', '.join(operands)}, rows, {self._target(term)});"

    def _product(self, term: RowSum, right: Access, turn: int) -> str:
        vectors = self.padded(right) // self.layout.lanes
        full_panels, last = divmod(vectors, WIDEST)
        full, rest = (
            f"across{width}" if needed else "0"
            for width, needed in ((WIDEST, full_panels), (last, last))
        )
        offset = self.packed.get(right)
        count = self._copied_rows
        at = self._rows(right) if offset is None else f"c->right + {offset} * {count}, -1"
        left = self._rows(term.left)
        if self.pairs:
            left_offset, row = self.paired[term.left]
            left = f"c->right + {left_offset} * {count}, {row}"
        first = f"w, {turn}, {left}, {term.left.units}"
        most, target = tile_rows(self.isa, WIDEST), self._target(term)
        tiles = (
            f"add_outer({first}, {most}, {at}, {vectors}, {count}, {self.blocks.k}, {target},"
            f" {full}, {rest});"
        )
        if right not in self.listed:
            return tiles
        number = self.listed.index(right)
        panel = f"c->panel + w->id * rows * {WIDEST} * VL"
        if self.pairs:
            start, row = self.rounded[term.left]
            first = f"w, {turn}, {self._rounded_at(start)}, {row}, {term.left.units}"
        return (
            f"if (few{number}) add_listed({first}, {most}, {self._rows(right)},"
            f" {right.units}, rows, lists{number}, {panel},"
            f" {target}, picked{WIDEST}); else {tiles}"
        )

    def vectors_and_scalars(self) -> list[str]:
        """Accumulate this worker's units of every vector sum, and the scalar sums."""
        lines: list[str] = []
        for term in self.rest:
            assert isinstance(term.target, Access)
            target, left = self.start(term.target), term.left
            acc = "!first" if term.first else "1"
            if left.scalar:
                lines.append(
                    f"if (!w->id) {{ T s = {acc} ? *({target}) : 0;"
                    f" for (long r = 0; r < rows; r++) s += *({self.at(left)}); *({target}) = s; }}"
                )
                continue
            padded = self.padded(left)
            units = left.units if left.width is not None else padded
            lines.append(
                f"column_sums(w, {self._rows(left)}, {padded // self.layout.lanes}, {units}, rows,"
                f" {target}, {acc});"
            )
        return lines
