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
    Multiply,
    Op,
    Part,
    Prefetch,
    Ref,
    Store,
    Value,
)

Sums = dict[Axis | None, list[tuple[int, Accumulate]]]  # by axis
_NO_AXES: frozenset[Axis] = frozenset()
_BOTH_AXES: frozenset[Axis] = frozenset(("rows", "columns"))
_VECTORS = 8  # of a row, walked through together at most
_SUMS = 24  # vectors of sums that stay in registers


def row_totals(lanes: int) -> str:
    """C function ``totals_of``: the sums of VL vectors, in a vector."""
    lines = ["INLINE V totals_of(const V *x) {", *(f"    V r{i} = x[{i}];" for i in range(lanes))]
    distance = 1
    while distance < lanes:
        low = ", ".join(str(i if not i & distance else lanes + i - distance) for i in range(lanes))
        high = ", ".join(str(i + distance if not i & distance else lanes + i) for i in range(lanes))
        for i in range(0, lanes, 2 * distance):
            j = i + distance
            lines.append(f"    r{i} = SHUFFLE(r{i}, r{j}, {low}) + SHUFFLE(r{i}, r{j}, {high});")
        distance *= 2
    return "\n".join([*lines, "    return r0;", "}"])


class MatrixSpelling(Spelling):
    """Spells parts over a matrix: row ``i``, vector ``j`` of columns, and what is summed up.

    What is the same in all rows, or columns, is computed before the loop over these: a compiler
    cannot know that no store changes it.
    """

    def accumulate(self, statement: Accumulate) -> str:
        """See :meth:`Spelling.accumulate`. The terms of a sum are added one by one: products among
        them cost one instruction then."""
        number, value = self._numbers[id(statement)], statement.value
        if isinstance(value, Ref):
            value = self._lets[value.index]
        terms = value.args if isinstance(value, Affine) and value.is_sum else (statement.value,)
        texts = map(self.value, terms)
        if self._tail and statement.axis != "columns":
            texts = (f"lanes_before({text}, {self.matrix_columns} - u)" for text in texts)
        target = f"a{number}{'[j]' if statement.axis == 'columns' else ''}"
        return " ".join(f"{target} += {text};" for text in texts)

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

    def matrix_body(
        self, part: Part, columns: int, vectors: int | str
    ) -> tuple[list[str], list[str], list[str], Sums]:
        """C lines before the loop over rows, in it, and for each vector of columns; the sums that
        the part has, by axis, each with its number."""
        before: list[str] = []
        in_row: list[str] = []
        in_vector: list[str] = []
        sums = [statement for statement in part.body if isinstance(statement, Accumulate)]
        self._numbers = {id(statement): number for number, statement in enumerate(sums)}
        self._tail = columns % self.layout.lanes != 0
        self._changes = []
        self._lets: list[Value] = []
        self.matrix_columns = columns
        for statement in part.body:
            match statement:
                case Let(value):
                    self._lets.append(value)
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
                case Prefetch() | Multiply():
                    pass
        self.matrix_columns = 0
        by_axis: Sums = {
            axis: [(number, s) for number, s in enumerate(sums) if s.axis == axis]
            for axis in ("rows", "columns", None)
        }
        return before, in_row, in_vector, by_axis

    def matrix_part(self, part: Part) -> list[str]:
        """C lines of a part over a matrix."""
        assert part.axes is not None
        assert not part.products
        assert part.groups == 1
        rows, columns = part.axes
        lanes = self.layout.lanes
        vectors = -(-columns // lanes)
        before, in_row, in_vector, sums = self.matrix_body(part, columns, vectors)
        most = min(_VECTORS, _SUMS // max(1, len(sums["columns"])))
        block = -(-vectors // -(-vectors // max(1, most)))
        products = [line for s in part.body if isinstance(s, Multiply) for line in self.multiply(s)]
        if not in_vector and not products:
            return []
        by_row, by_column, of_all = sums["rows"], sums["columns"], sums[None]
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
            *(f"    s{number}[i % VL] = a{number};" for number, _ in by_row),
            *([f"    if (i % VL == VL - 1 || i == {rows - 1}) {{"] if by_row else []),
            *(
                "    " * 2 + line
                for n, s in by_row
                for line in self._row_results(n, s, rows, blocks)
            ),
            *(["    }"] if by_row else []),
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
            *(f"V s{number}[VL] = {{0}};" for number, _ in by_row),
            *(f"V a{number} = {{0}};" for number, _ in of_all),
            *before,
            *loop,
            *(line for n, s in by_column for line in self.column_results(n, s, vectors)),
            *totals,
        ]
        lines = [*(lines if in_vector else ()), *products]
        return ["for (long r = r0; r < r1; r++) {", *("    " + line for line in lines), "}"]

    def multiply(self, statement: Multiply) -> list[str]:
        """C lines of a product of two matrices of the sample."""
        m, k, n = statement.rows, statement.inner, statement.columns
        first, *others = map(self.at, statement.accesses)
        left, right = (
            f"1, {across}" if swapped else f"{along}, 1"
            for swapped, across, along in zip(statement.transposed, (m, k), (k, n), strict=True)
        )
        sides = f"{self.at(statement.left)}, {left}, {self.at(statement.right)}, {right}"
        return [
            f"multiply({m}, {k}, {n}, {first}, {sides});",
            *(
                f"for (long u = 0; u < {m * n}; u++) ({other})[u] = ({first})[u];"
                for other in others
            ),
        ]

    def _row_results(
        self, number: int, statement: Accumulate, rows: int, blocks: bool
    ) -> list[str]:
        """C lines that store the sums of a vector of rows, up to row ``i``: of all columns, or of
        one of several blocks of them."""
        lines = [f"V total = totals_of(s{number});"]
        for access in statement.accesses:
            limit = access.width or 0 if self.partial(access) else 0
            first, place = "i / VL * VL", self.at(access)
            if blocks:
                before = f"ldn({place}, {first}, {limit})" if limit else f"ld({place} + {first})"
                lines.append(f"if (first) total += {before};")
            lines.append(
                f"stn({place}, {first}, {limit}, total);"
                if limit
                else f"st({place} + {first}, total);"
            )
        return ["{", *("    " + line for line in lines), "}"]

    def column_results(self, number: int, statement: Accumulate, vectors: int | str) -> list[str]:
        """C lines that store the sums of all columns."""
        return [
            f"for (long j = 0; j < {vectors}; j++) {self._column_result(access, f'a{number}[j]')}"
            for access in statement.accesses
        ]

    def _column_result(self, access: Access, text: str) -> str:
        if self.partial(access):
            return f"stn({self.at(access)}, j * VL, {access.width}, {text});"
        return f"st({self.at(access)} + j * VL, {text});"
