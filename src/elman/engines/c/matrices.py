"""Parts over matrices per sample as C: one pass over the elements, sums along either axis with it."""

from __future__ import annotations

from elman.engines.c.spelling import Spelling
from elman.lowered.types import Access, Accumulate, Axis, Part

# C text of the empty result, of combining two vectors, two numbers, and the lanes of one vector
_COMBINE = {
    "sum": ("(V){0}", "{0} + {1}", "{0} + {1}", "total_of({0})"),
    "amax": ("bc(-(T)INFINITY)", "v_max({0}, {1})", "larger_of({0}, {1})", "largest_of({0})"),
}
_VECTORS = 8  # of a row that are walked through together, with the sums along both axes in registers


class MatrixSpelling(Spelling):
    """Spells parts over a matrix: row ``i``, vector ``j`` of columns, and what is summed up."""

    def _accumulations(self, part: Part) -> list[Accumulate]:
        return [s for s in part.body if isinstance(s, Accumulate)]

    def accumulate(self, statement: Accumulate) -> str:
        """See :meth:`Spelling.accumulate`."""
        number = self._numbers[id(statement)]
        text = self.value(statement.value)
        if self._tail and statement.axis != "columns":
            text = f"lanes_before({text}, {self.matrix_columns} - u, {_empty(statement)})"
        name = f"a{number}[j]" if statement.axis == "columns" else f"a{number}"
        return f"{name} = {_COMBINE[statement.name][1].format(name, text)};"

    def matrix_part(self, part: Part) -> list[str]:
        """C lines of a part over a matrix."""
        assert part.axes is not None and not part.products and part.groups == 1
        rows, columns = part.axes
        lanes = self.layout.lanes
        vectors = -(-columns // lanes)
        block = -(-vectors // -(-vectors // _VECTORS))
        sums = self._accumulations(part)
        self._numbers = {id(statement): number for number, statement in enumerate(sums)}
        self._tail = columns % lanes != 0
        self.matrix_columns = columns
        body = self.body(part.body)
        self.matrix_columns = 0
        if not body:
            return []
        along: dict[Axis | None, list[tuple[int, Accumulate]]] = {}
        for number, statement in enumerate(sums):
            along.setdefault(statement.axis, []).append((number, statement))
        by_row, by_column, of_all = (along.get(k, []) for k in ("rows", "columns", None))
        blocks = vectors > block
        end = f"{block}" if not blocks else f"(first + {block} < {vectors} ? first + {block} : {vectors})"
        loop = [
            f"for (long i = 0; i < {rows}; i++) {{",
            *(f"    V a{n} = {_empty(s)};" for n, s in by_row),
            f"    _Pragma(\"GCC unroll {block}\")",
            f"    for (long j = {'first' if blocks else 0}; j < {end}; j++) {{",
            "        const long u = j * VL; (void)u;",
            *("        " + line for line in body),
            "    }",
            *("    " + line for n, s in by_row for line in self._row_result(n, s, blocks=blocks)),
            "}",
        ]
        if blocks:
            inner = ["    " + line for line in loop]
            loop = [f"for (long first = 0; first < {vectors}; first += {block}) {{", *inner, "}"]
        return [
            "for (long r = r0; r < r1; r++) {",
            *(f"    V a{n}[{vectors}]; for (long j = 0; j < {vectors}; j++) a{n}[j] = {_empty(s)};"
              for n, s in by_column),
            *(f"    V a{n} = {_empty(s)};" for n, s in of_all),
            *("    " + line for line in loop),
            *("    " + line for n, s in by_column for line in self._column_results(n, s, vectors)),
            *(
                f"    {self.element(access)} = {_total(s, f'a{n}')};"
                for n, s in of_all
                for access in s.accesses
            ),
            "}",
        ]

    def _row_result(self, number: int, statement: Accumulate, *, blocks: bool) -> list[str]:
        """C lines that store the result of row ``i``."""
        total, both = _total(statement, f"a{number}"), _COMBINE[statement.name][2]
        lines: list[str] = []
        for access in statement.accesses:
            place = f"({self.at(access)})[i]"
            text = f"first ? {both.format(place, total)} : {total}" if blocks else total
            lines.append(f"{place} = {text};")
        return lines

    def _column_results(self, number: int, statement: Accumulate, vectors: int) -> list[str]:
        """C lines that store the results of all columns."""
        return [
            f"for (long j = 0; j < {vectors}; j++) {self._column_result(access, f'a{number}[j]')}"
            for access in statement.accesses
        ]

    def _column_result(self, access: Access, text: str) -> str:
        if self.partial(access):
            return f"stn({self.at(access)}, j * VL, {access.width}, {text});"
        return f"st({self.at(access)} + j * VL, {text});"


def _empty(statement: Accumulate) -> str:
    return _COMBINE[statement.name][0]


def _total(statement: Accumulate, vector: str) -> str:
    return _COMBINE[statement.name][3].format(vector)
