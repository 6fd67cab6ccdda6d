"""Weight gradients: Σ over the rows of a chunk of outer products, of vectors, of scalars."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from elman.engines.c.gathering import Gathering
from elman.engines.c.layout import CLayout
from elman.engines.c.places import RowAddress
from elman.engines.c.tiles import WIDEST, tile_rows
from elman.engines.c.weights import WeightArrays, WeightCode
from elman.ir.graph import Node
from elman.ir.pair import Sum
from elman.plan.program import Program

_FEW = 512  # units of left operands: to copy the right one would not pay


class SumWriter:
    """Writes the code of the sums after each chunk of the backward.

    Each worker owns rows of the gradients, so nothing is combined afterwards. A right operand of
    many products is copied into panels once; left ones are read as they lie.
    """

    def __init__(
        self,
        program: Program,
        layout: CLayout,
        code: WeightCode,
        arrays: WeightArrays,
        place: Callable[[Node], RowAddress],
        gathering: Gathering,
    ) -> None:
        self.program, self.layout, self.code, self.arrays, self.place = (
            program,
            layout,
            code,
            arrays,
            place,
        )
        self.leaf_of = dict(program.pair.d_invariants)
        gradients = dict(zip(program.pair.step.weights, program.pair.d_weights, strict=True))
        self.direct = {
            target
            for target, d in program.pair.d_invariants
            if gradients.get(target) is d
            and len(target.shape) == 2
            and layout.size(target.shape[1][0]) % layout.lanes == 0
        }
        matrix = [term for term in program.sums if term.right is not None]
        self.rights = list(dict.fromkeys(term.right for term in matrix if term.right is not None))
        self.lefts = list(dict.fromkeys(term.left for term in matrix))
        # as they are spelled: all products of one left operand, then those of the next
        self.matrix = [term for operand in self.lefts for term in matrix if term.left is operand]
        self.rest = [term for term in program.sums if term.right is None]
        self.listed = [
            value
            for value in self.rights
            if gathering.sums(value, [t.left for t in self.matrix if t.right is value])
        ]

    def size(self, value: Node) -> int:
        """Units of a value."""
        return self.layout.size(value.shape[0][0]) if value.shape else 1

    @cached_property
    def packed(self) -> dict[Node, int]:
        """Right operands that are copied into panels, and where these begin per row of the chunk.

        Those of few products are read as they lie, if they are whole vectors.
        """
        offsets: dict[Node, int] = {}
        width = 0
        for value in self.rights if self.layout.tiled else ():
            lefts = sum(self.size(term.left) for term in self.matrix if term.right is value)
            if lefts > _FEW or self.size(value) % self.layout.lanes:
                offsets[value] = width
                width += self.layout.padded(value.shape[0][0])
        return offsets

    @property
    def right_row(self) -> int:
        """Elements of the packed right operands per row of the chunk."""
        return sum(self.layout.padded(value.shape[0][0]) for value in self.packed)

    @property
    def regions(self) -> list[tuple[str, str]]:
        """Workspace for lists of ones, and for a panel of left operands: of each worker."""
        lists = " + ".join(f"lists_size(rows, {self.size(value)})" for value in self.listed)
        panel = f"c->workers * rows * {WIDEST} * VL" if self.listed else "0"
        return [("lists", f"c->workers * ({lists or 0})"), ("panel", panel)]

    def target(self, term: Sum) -> tuple[str, str]:
        """C text of where a matrix sum is accumulated, and of its row length."""
        if term.target in self.direct:
            return self.arrays.address(term.target, "c->dw"), str(self.arrays.row[term.target])
        return self.code.matrix(self.leaf_of[term.target])

    def _acc(self, term: Sum) -> str:
        """C condition for adding to the target: false for its first term in the first chunk."""
        spelled = (*self.matrix, *self.rest)
        first = next(candidate for candidate in spelled if candidate.target is term.target)
        return "!first" if first is term else "1"

    def pack(self) -> list[str]:
        """Copy right operands into panels shared by all workers, and wait for them."""
        lines = ["long lists = 0; (void)lists;"] if self.listed else []
        for number, value in enumerate(self.listed):
            place, units = self.place(value), self.size(value)
            lines += [
                f"T *const lists{number} = c->lists + lists + w->id * lists_size(rows, {units});",
                f"lists += c->workers * lists_size(rows, {units});",
                f"const int few{number} = list_ones({place.at('0')}, {place.stride}, {units}, rows,"
                f" lists{number});",
            ]
        for value, offset in self.packed.items():
            place = self.place(value)
            vectors = self.layout.padded(value.shape[0][0]) // self.layout.lanes
            test = f"if (!few{self.listed.index(value)}) " if value in self.listed else ""
            lines.append(
                f"{test}pack_right(w, c->right + {offset} * rows, {place.at('0')}, {place.stride},"
                f" {vectors}, {self.size(value)}, rows);"
            )
        return lines

    def products(self, k_block: int) -> list[str]:
        """Accumulate this worker's rows of every matrix sum."""
        if not self.layout.tiled:
            return [self._plain(term) for term in self.matrix]
        # all terms of a sum are dealt alike: nobody waits for others between them
        turns = {target: turn for turn, target in enumerate({t.target: 0 for t in self.matrix})}
        return [self._product(term, turns[term.target], k_block) for term in self.matrix]

    def _plain(self, term: Sum) -> str:
        assert term.right is not None
        base, row = self.target(term)
        operands = [
            f"{place.at('0')}, {place.stride}, {self.size(value)}"
            for value in (term.left, term.right)
            for place in (self.place(value),)
        ]
        return f"plain_outer(w, {', '.join(operands)}, rows, {base}, {row}, {self._acc(term)});"

    def _product(self, term: Sum, turn: int, k_block: int) -> str:
        base, row = self.target(term)
        assert term.right is not None
        vectors = self.layout.padded(term.right.shape[0][0]) // self.layout.lanes
        full_panels, last = divmod(vectors, WIDEST)
        full, rest = (
            f"across{width}" if needed else "0"
            for width, needed in ((WIDEST, full_panels), (last, last))
        )
        rows, columns = self.place(term.left), self.place(term.right)
        offset = self.packed.get(term.right)
        panels = f"c->right + {offset} * rows, -1"
        at = panels if offset is not None else f"{columns.at('0')}, {columns.stride}"
        first = f"w, {turn}, {rows.at('0')}, {rows.stride}, {self.size(term.left)}"
        most, acc = tile_rows(self.layout.isa, WIDEST), self._acc(term)
        tiles = (
            f"add_outer({first}, {most}, {at}, {vectors}, rows, {k_block}, {base}, {row}, {acc},"
            f" {full}, {rest});"
        )
        if term.right not in self.listed:
            return tiles
        number = self.listed.index(term.right)
        panel = f"c->panel + w->id * rows * {WIDEST} * VL"
        return (
            f"if (few{number}) add_listed({first}, {most}, {columns.at('0')}, {columns.stride},"
            f" {self.size(term.right)}, rows, lists{number}, {panel},"
            f" {base}, {row}, {acc}, picked{WIDEST}); else {tiles}"
        )

    def vectors(self) -> list[str]:
        """Accumulate this worker's units of every vector sum, and the scalar sums."""
        lines: list[str] = []
        for term in self.rest:
            place = self.place(term.left)
            target = f"c->vec + {self.layout.vector(self.leaf_of[term.target])}"
            if not term.left.shape:
                lines.append(
                    f"if (!w->id) {{ T s = {self._acc(term)} ? *({target}) : 0;"
                    f" for (long r = 0; r < rows; r++) s += *({place.at('r')}); *({target}) = s; }}"
                )
                continue
            size = self.size(term.left)
            vectors = self.layout.padded(term.left.shape[0][0]) // self.layout.lanes
            units = size if place.width is not None else vectors * self.layout.lanes
            lines.append(
                f"column_sums(w, {place.at('0')}, {place.stride}, {vectors}, {units}, rows,"
                f" {target}, {self._acc(term)});"
            )
        return lines
