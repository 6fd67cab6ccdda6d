"""Parts over matrices per sample as C: one pass over the elements, with sums along either axis."""

from __future__ import annotations

from elman.engines.c.spelling import Spelling
from elman.lowered.types import (
    Access,
    Accumulate,
    Affine,
    Along,
    Axis,
    Const,
    Let,
    Load,
    Op,
    Part,
    Prefetch,
    Ref,
    Store,
    Value,
)

_NO_AXES: frozenset[Axis] = frozenset()
_BOTH_AXES: frozenset[Axis] = frozenset(("rows", "columns"))
_VECTORS = 8  # of a row, walked through together: sums along both axes stay in registers


class MatrixSpelling(Spelling):
    """Spells parts over a matrix: row ``i``, vector ``j`` of columns, and what is summed up.

    What is the same in all rows, or columns, is computed before the loop over these: a compiler
    cannot know that no store changes it.
    """

    def accumulate(self, statement: Accumulate) -> str:
        """See :meth:`Spelling.accumulate`."""
        number = self._numbers[id(statement)]
        text = self.value(statement.value)
        if self._tail and statement.axis != "columns":
            text = f"lanes_before({text}, {self.matrix_columns} - u)"
        return f"a{number}{'[j]' if statement.axis == 'columns' else ''} += {text};"

    def register(self, index: int) -> str:
        """See :meth:`Spelling.register`."""
        by_column = self.matrix_columns and self._changes[index] == {"columns"}
        return f"x{index}[j]" if by_column else f"x{index}"

    def _axes(self, value: Value) -> frozenset[Axis]:
        """The axes along which a value changes."""
        match value:
            case Ref(index):
                return self._changes[index]
            case Along(_, axis):
                return frozenset((axis,))
            case Op(_, args) | Affine(_, _, args):
                return frozenset[Axis]().union(*map(self._axes, args))
            case Load(access):
                return _NO_AXES if access.scalar else _BOTH_AXES
            case Const():
                return _NO_AXES
            case _:
                return _BOTH_AXES

    def _matrix_body(self, part: Part, vectors: int) -> tuple[list[str], list[str], list[str]]:
        """C lines before the loop over rows, in it, and for each vector of columns."""
        before: list[str] = []
        in_row: list[str] = []
        in_vector: list[str] = []
        self._changes = []
        for statement in part.body:
            match statement:
                case Let(value):
                    axes, name = self._axes(value), f"x{len(self._changes)}"
                    self._changes.append(axes)
                    text = self.value(value)
                    if axes == {"columns"}:
                        each = f"const long u = j * VL; (void)u; {name}[j] = {text};"
                        before += [
                            f"V {name}[{vectors}];",
                            f"for (long j = 0; j < {vectors}; j++) {{ {each} }}",
                        ]
                    else:
                        lines = in_vector if len(axes) > 1 else in_row if axes else before
                        lines.append(f"const V {name} = {text};")
                case Store():
                    in_vector.append(self.store(statement))
                case Accumulate():
                    in_vector.append(self.accumulate(statement))
                case Prefetch():
                    pass
        return before, in_row, in_vector

    def matrix_part(self, part: Part) -> list[str]:
        """C lines of a part over a matrix."""
        assert part.axes is not None
        assert not part.products
        assert part.groups == 1
        rows, columns = part.axes
        lanes = self.layout.lanes
        vectors = -(-columns // lanes)
        block = -(-vectors // -(-vectors // _VECTORS))
        sums = [statement for statement in part.body if isinstance(statement, Accumulate)]
        self._numbers = {id(statement): number for number, statement in enumerate(sums)}
        self._tail = columns % lanes != 0
        self.matrix_columns = columns
        before, in_row, in_vector = self._matrix_body(part, vectors)
        self.matrix_columns = 0
        if not in_vector:
            return []
        by_row, by_column, of_all = (
            [(number, s) for number, s in enumerate(sums) if s.axis == axis]
            for axis in ("rows", "columns", None)
        )
        blocks = vectors > block
        start, end = ("first", f"lesser_of(first + {block}, {vectors})") if blocks else (0, block)
        loop = [
            f"for (long i = 0; i < {rows}; i++) {{",
            *(f"    V a{number} = {{0}};" for number, _ in by_row),
            *("    " + line for line in in_row),
            f'    _Pragma("GCC unroll {block}")',
            f"    for (long j = {start}; j < {end}; j++) {{",
            "        const long u = j * VL; (void)u;",
            *("        " + line for line in in_vector),
            "    }",
            *("    " + line for n, s in by_row for line in self._row_result(n, s, blocks=blocks)),
            "}",
        ]
        if blocks:
            inner = ["    " + line for line in loop]
            loop = [f"for (long first = 0; first < {vectors}; first += {block}) {{", *inner, "}"]
        totals = [
            f"{self.element(access)} = total_of(a{number});"
            for number, statement in of_all
            for access in statement.accesses
        ]
        lines = [
            *(f"V a{number}[{vectors}] = {{0}};" for number, _ in by_column),
            *(f"V a{number} = {{0}};" for number, _ in of_all),
            *before,
            *loop,
            *(line for n, s in by_column for line in self._column_results(n, s, vectors)),
            *totals,
        ]
        return ["for (long r = r0; r < r1; r++) {", *("    " + line for line in lines), "}"]

    def _row_result(self, number: int, statement: Accumulate, *, blocks: bool) -> list[str]:
        """C lines that store the sum of row ``i``, of one of several blocks of columns."""
        lines: list[str] = []
        for access in statement.accesses:
            place = f"({self.at(access)})[i]"
            total = f"total_of(a{number})"
            lines.append(
                f"{place} = {f'first ? {place} + {total} : {total}' if blocks else total};"
            )
        return lines

    def _column_results(self, number: int, statement: Accumulate, vectors: int) -> list[str]:
        """C lines that store the sums of all columns."""
        return [
            f"for (long j = 0; j < {vectors}; j++) {self._column_result(access, f'a{number}[j]')}"
            for access in statement.accesses
        ]

    def _column_result(self, access: Access, text: str) -> str:
        if self.partial(access):
            return f"stn({self.at(access)}, j * VL, {access.width}, {text});"
        return f"st({self.at(access)} + j * VL, {text});"
