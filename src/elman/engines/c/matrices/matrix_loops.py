"""Loops over the elements of matrices per sample as C: by rows, and by blocks of columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from elman.engines.c.matrices.fission import MOST_COLUMN_SUMS, split_loop
from elman.engines.c.matrices.passes import MatrixPass, MatrixSpelling, Subscripts
from elman.engines.c.spelling.row_prefetches import LINES, RowPrefetches
from elman.lowered.types import Access, Accumulate, Multiply, Part

_BY_COLUMN = Subscripts({"columns": "[k]", None: "[k]"}, {"columns": "[k]"})
_BY_ROW = Subscripts({"columns": "[k]", "rows": "[q]", None: "[q]"}, {"rows": "[q]"}, keeps=True)
_VECTORS = 8  # of a row, walked through together at most
_ROWS = 4  # walked through together where there are no sums of columns


def _unrolled(index: str, count: int, lines: Iterable[str], *places: str) -> list[str]:
    """C lines for each value of an index, from which places are computed; none without lines."""
    lines = list(lines)
    if not lines:
        return []
    inner = [*(f"const long {place}; (void){place[0]};" for place in places), *lines]
    head = [f'_Pragma("GCC unroll {count}")'] if count <= _VECTORS else []
    head.append(f"for (long {index} = 0; {index} < {count}; {index}++) {{")
    return [*head, *("    " + line for line in inner), "}"]


class MatrixLoops(MatrixSpelling):
    """Prints the loops of parts over a matrix.

    Attributes:
        accumulators: registers that sums may take.
        ahead: by identity of a part, its prefetches.
    """

    accumulators: int
    ahead: Mapping[int, RowPrefetches] = MappingProxyType({})
    _ahead: RowPrefetches | None = None  # of the part that is printed
    _places: dict[str, str] | None = None  # names of addresses, by their texts, within a part

    def at(self, access: Access, row: str = "r") -> str:
        """See :meth:`Spelling.at`. Within a part over a matrix an address has a name: a compiler
        computes products of strides again in every row of the matrix."""
        text = super().at(access, row)
        if self._places is None:
            return text
        return self._places.setdefault(text, f"p{len(self._places)}")

    def _table(self, ahead: RowPrefetches) -> list[str]:
        """C lines that declare where the lines of the next sample begin that are prefetched: as
        numbers, because behind the last sample there is no such element."""
        places = [
            f"(uintptr_t)({self.base(access)[1]})"
            f" + (uintptr_t)({self.index(access, '(r + 1)')} + {start}) * sizeof(T)"
            for access, start in ahead.places
        ]
        return [
            f"const uintptr_t ahead[] = {{{', '.join(places)}}};",
            f"long asked = more ? 0 : {len(places)};",
        ]

    def _ask(self, row: str) -> list[str]:
        """C line that prefetches a few lines of the next sample in some rows."""
        ahead = self._ahead
        if ahead is None:
            return []
        lines = " ".join(f"PREFETCH(at, {n * ahead.line}, 0);" for n in range(LINES))
        test = f"!({row} & {ahead.every - 1}) && asked < {len(ahead.places)}"
        return [f"    if ({test}) {{ const uintptr_t at = ahead[asked++]; {lines} }}"]

    def matrix_part(self, part: Part) -> list[str]:
        """C lines of a part over a matrix."""
        assert part.axes is not None
        assert not part.products
        assert part.groups == 1
        self._places = {}
        self._ahead = self.ahead.get(id(part))
        lines = self._loops(split_loop(part, self.accumulators // _ROWS - 1), *part.axes)
        for statement in part.body:
            if isinstance(statement, Multiply):
                lines += self.multiply(statement)
        places, self._places = self._places, None
        if not lines:
            return []
        if self._ahead is not None:
            lines = [*self._table(self._ahead), *lines]
        lines = [*(f"T *const {name} = (T *)({text});" for text, name in places.items()), *lines]
        return ["for (long r = r0; r < r1; r++) {", *("    " + line for line in lines), "}"]

    def _loops(self, parts: Sequence[Part], rows: int, columns: int) -> list[str]:
        """C lines of parts: those that take a few rows at once in one loop, which reads a matrix
        from afar once, then the others."""
        divisible = rows % _ROWS == self.layout.lanes % _ROWS == 0
        vectors = -(-columns // self.layout.lanes)
        together: list[MatrixPass] = []
        lines: list[str] = []
        for part in parts:
            axes = [statement.axis for statement in part.body if isinstance(statement, Accumulate)]
            self.subscripts = _BY_COLUMN
            most = MOST_COLUMN_SUMS if "rows" in axes else 0
            if divisible and axes.count("columns") <= most:
                self.subscripts = _BY_ROW
            printed = self.matrix_pass(part, columns)
            if not printed.in_vector:
                continue
            if self.subscripts is _BY_ROW:
                together.append(printed)
            else:
                lines += self._in_blocks(rows, vectors, printed)
        self.subscripts = _BY_ROW
        lines = [*self._in_rows(rows, vectors, together), *lines]
        self.subscripts = MatrixSpelling.subscripts
        return lines

    def _in_blocks(self, rows: int, vectors: int, lines: MatrixPass) -> list[str]:
        """C lines of a loop over blocks of columns, so that their sums stay in registers."""
        most = min(_VECTORS, (self.accumulators - _ROWS) // max(1, len(self.arrays(lines))))
        blocks = -(-vectors // max(1, most))
        size, wider = divmod(vectors, blocks)
        end = wider * (size + 1)
        inner = [
            *(f"V s{number}[VL] = {{0}};" for number, _ in lines.sums["rows"]),
            *(f"V t{number} = {{0}};" for number, _ in lines.sums[None]),
            *lines.once,
            *(self._block(rows, 0, end, size + 1, lines) if wider else ()),
            *self._block(rows, end, vectors, size, lines),
            *self.totals(lines.sums, "t"),
        ]
        return ["{", *("    " + line for line in inner), "}"]

    def _in_rows(self, rows: int, vectors: int, passes: Sequence[MatrixPass]) -> list[str]:
        """C lines of a loop that takes a few rows at once: these share what is loaded for a
        column."""
        if not passes:
            return []
        loop, ends = list[str](), list[str]()
        for lines in passes:
            loop += ["{", *("    " + line for line in self._few_rows(vectors, lines)), "}"]
            ends += _unrolled("k", vectors, self.column_results(lines.sums), "u = k * VL")
            ends += [f"V t{number} = {{0}};" for number, _ in lines.sums[None]]
            ends += _unrolled(
                "q", _ROWS, [f"t{number} += a{number}[q];" for number, _ in lines.sums[None]]
            )
            ends += self.totals(lines.sums, "t")
        inner = [
            *(f"V a{n}[{vectors}] = {{0}};" for lines in passes for n, _ in lines.sums["columns"]),
            *(f"V a{n}[{_ROWS}] = {{0}};" for lines in passes for n, _ in lines.sums[None]),
            f"for (long i0 = 0; i0 < {rows}; i0 += {_ROWS}) {{",
            *self._ask("i0"),
            *("    " + line for line in loop),
            "}",
            *ends,
        ]
        return ["{", *("    " + line for line in inner), "}"]

    def _few_rows(self, vectors: int, lines: MatrixPass) -> list[str]:
        """C lines for a few rows from ``i0`` on."""

        def each(inner: Iterable[str]) -> list[str]:
            return _unrolled("q", _ROWS, inner, "i = i0 + q")

        by_row = lines.sums["rows"]
        printed = [
            *lines.once,
            *(f"V a{number}[{_ROWS}] = {{0}};" for number, _ in by_row),
            *(f"V {name}[{_ROWS}];" for name, _ in lines.by_row),
            *each(f"{name}[q] = {text};" for name, text in lines.by_row),
            f"for (long k = 0; k < {vectors}; k++) {{",
            "    const long u = k * VL; (void)u;",
            *(f"    const V {name} = {text};" for name, text in lines.by_column),
            *("    " + line for line in each(lines.in_vector)),
            "}",
        ]
        in_vector = self.layout.lanes // _ROWS
        for first in range(0, len(by_row), in_vector):
            group = by_row[first : first + in_vector]
            terms = [f"a{number}[{q}]" for number, _ in group for q in range(_ROWS)]
            stores = [
                f"    *(Q *)({self.at(access)} + i0) = ((const Q *)&total)[{n}];"
                for n, (_, statement) in enumerate(group)
                for access in statement.accesses
            ]
            printed += [
                "{",
                f"    const V terms[VL] = {{{', '.join(terms)}}};",
                "    const V total = totals_of(terms);",
                *stores,
                "}",
            ]
        return printed

    def _block(self, rows: int, first: int, end: int, size: int, lines: MatrixPass) -> list[str]:
        """C lines for vectors of columns from ``first`` to ``end``, so many at once, in all
        rows."""
        by_row, in_vectors = lines.sums["rows"], self.in_vectors
        results = [line for n, s in by_row for line in self._row_results(n, s, rows)]
        inner = [
            *in_vectors(size, self.column_values(lines)),
            f"for (long i = 0; i < {rows}; i++) {{",
            *(f"    V a{number} = {{0}};" for number, _ in by_row),
            *self._ask("i"),
            *(f"    const V {name} = {text};" for name, text in lines.by_row),
            *("    " + line for line in in_vectors(size, lines.in_vector)),
            *(f"    s{number}[i % VL] = a{number};" for number, _ in by_row),
            *([f"    if (i % VL == VL - 1 || i == {rows - 1}) {{"] if results else []),
            *("        " + line for line in results),
            *(["    }"] if results else []),
            "}",
            *in_vectors(size, self.column_results(lines.sums)),
            *in_vectors(size, [f"t{number} += a{number}[k];" for number, _ in lines.sums[None]]),
        ]
        arrays = [f"V {name}[{size}];" for name in self.arrays(lines)]
        head = f"for (long first = {first}; first < {end}; first += {size}) {{"
        return [head, *("    " + line for line in (*arrays, *inner)), "}"]

    def in_vectors(self, count: int, lines: Iterable[str]) -> list[str]:
        """C lines for each vector ``k`` of columns of a block."""
        return _unrolled("k", count, lines, "u = (first + k) * VL")

    def _row_results(self, number: int, statement: Accumulate, rows: int) -> list[str]:
        """C lines that add the sums of a vector of rows, up to row ``i``, to those of the blocks
        before."""
        lines = [f"V total = totals_of(s{number});"]
        for access in statement.accesses:
            limit = access.width or 0 if self.partial(access) else 0
            first, place = "i / VL * VL", self.at(access)
            before = f"ldn({place}, {first}, {limit})" if limit else f"ld({place} + {first})"
            lines += [
                f"if (first) total += {before};",
                f"stn({place}, {first}, {limit}, total);"
                if limit
                else f"st({place} + {first}, total);",
            ]
        return ["{", *("    " + line for line in lines), "}"]
