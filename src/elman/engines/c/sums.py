"""Weight gradients: Σ over the rows of a chunk of outer products, of vectors, of scalars."""

from __future__ import annotations

from collections.abc import Callable

from elman.engines.c.layout import CLayout
from elman.engines.c.places import RowAddress
from elman.engines.c.tiles import WIDEST, tile_rows
from elman.engines.c.weights import WeightArrays, WeightCode
from elman.ir.graph import Node
from elman.ir.pair import Sum
from elman.plan.program import Program


class SumWriter:
    """Spells what is summed after each chunk of the backward.

    Each worker owns rows of the gradients, so nothing is combined afterwards. An operand that
    several sums share is packed once.
    """

    def __init__(
        self,
        program: Program,
        layout: CLayout,
        code: WeightCode,
        arrays: WeightArrays,
        place: Callable[[Node], RowAddress],
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
        self.matrix = [term for left in self.lefts for term in matrix if term.left is left]
        self.rest = [term for term in program.sums if term.right is None]

    def size(self, value: Node) -> int:
        """Units of a value."""
        return self.layout.size(value.shape[0][0]) if value.shape else 1

    @property
    def right_row(self) -> int:
        """Elements of the packed right operands per row of the chunk."""
        if not self.layout.tiled:
            return 0
        return sum(self.layout.padded(value.shape[0][0]) for value in self.rights)

    @property
    def left_row(self) -> int:
        """Elements of the largest packed left operand per row of the chunk."""
        if not self.layout.tiled:
            return 0
        return max((self.size(value) for value in self.lefts), default=0)

    def target(self, term: Sum) -> tuple[str, str]:
        """C text of where a matrix sum is accumulated, and of its row length."""
        if term.target in self.direct:
            return self.arrays.address(term.target, "c->dw"), str(self.arrays.row[term.target])
        return self.code.matrix(self.leaf_of[term.target])

    def _acc(self, term: Sum) -> str:
        """Whether a term is added to what is there: all but the first that is spelled."""
        spelled = (*self.matrix, *self.rest)
        first = next(other for other in spelled if other.target is term.target)
        return "!first" if first is term else "1"

    def pack(self) -> list[str]:
        """Pack the right operands into panels shared by all workers, if products are tiled."""
        if not self.layout.tiled:
            return []
        lines: list[str] = []
        done = 0
        for value in self.rights:
            place = self.place(value)
            vectors = self.layout.padded(value.shape[0][0]) // self.layout.lanes
            lines.append(
                f"pack_right(w, c->right + {done} * rows, {place.at('0')}, {place.stride},"
                f" {vectors}, {self.size(value)}, rows);"
            )
            done += vectors * self.layout.lanes
        return lines

    def products(self, k_block: int) -> list[str]:
        """Accumulate this worker's rows of every matrix sum."""
        if not self.layout.tiled:
            return [self._plain(term) for term in self.matrix]
        most = tile_rows(self.layout.isa, WIDEST)
        offsets: dict[Node, int] = {}
        done = 0
        for value in self.rights:
            offsets[value] = done
            done += self.layout.padded(value.shape[0][0])
        lines: list[str] = []
        for left in self.lefts:
            place = self.place(left)
            lines += [
                "{",
                "    /* fewer workers may have come than were asked for: larger shares */",
                "    T *area = c->left + w->id * (c->workers * c->left_size / w->workers);",
                f"    Left left = pack_left(w, area, {place.at('0')}, {place.stride},"
                f" {self.size(left)}, rows, {most});",
            ]
            for term in self.matrix:
                if term.left is left and term.right is not None:
                    lines.append(self._product(term, offsets[term.right], k_block))
            lines.append("}")
        return lines

    def _plain(self, term: Sum) -> str:
        assert term.right is not None
        base, row = self.target(term)
        operands = [
            f"{place.at('0')}, {place.stride}, {self.size(value)}"
            for value in (term.left, term.right)
            for place in (self.place(value),)
        ]
        return f"plain_outer(w, {', '.join(operands)}, rows, {base}, {row}, {self._acc(term)});"

    def _product(self, term: Sum, offset: int, k_block: int) -> str:
        base, row = self.target(term)
        assert term.right is not None
        vectors = self.layout.padded(term.right.shape[0][0]) // self.layout.lanes
        whole, last = divmod(vectors, WIDEST)
        full, rest = (
            f"outer{width}" if there else "0" for width, there in ((WIDEST, whole), (last, last))
        )
        return (
            f"    add_outer(&left, c->right + {offset} * rows, {vectors}, {k_block}, {base}, {row},"
            f" {self._acc(term)}, {full}, {rest});"
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
