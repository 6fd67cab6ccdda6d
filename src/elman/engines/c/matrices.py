"""Parts over matrices per sample as C: one pass over the elements, with sums along either axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from elman.engines.c.row_prefetches import LINES, RowPrefetches
from elman.engines.c.spelling import Spelling
from elman.lowered.types import (
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
_SUMS = 16  # vectors of sums that stay in registers


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


@dataclass
class MatrixPass:
    """C lines of a pass over the elements of a matrix.

    Attributes:
        once: before all loops.
        by_column: names of arrays, an element per vector of columns, and C text of what they hold.
        in_row: in each row, before its vectors.
        in_vector: for each vector of a row.
        sums: the part's accumulations by axis, each with its number.
    """

    once: list[str] = field(default_factory=list)
    by_column: list[tuple[str, str]] = field(default_factory=list)
    in_row: list[str] = field(default_factory=list)
    in_vector: list[str] = field(default_factory=list)
    sums: Sums = field(default_factory=dict)


class MatrixSpelling(Spelling):
    """Spells parts over a matrix: row ``i``, columns from ``u`` on, which are vector ``k`` of those
    that a row is walked through for, and what is summed up.

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
        target = f"a{number}{'[k]' if statement.axis == 'columns' else ''}"
        return " ".join(f"{target} += {text};" for text in texts)

    ahead: Mapping[int, RowPrefetches] = MappingProxyType({})  # by identity of a part
    _ahead: RowPrefetches | None = None  # of the part that is printed

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
            f"long asked = more ? 0 : {LINES * len(places)};",
        ]

    def _ask(self) -> list[str]:
        """C line that prefetches a line of the next sample in some rows."""
        ahead = self._ahead
        if ahead is None:
            return []
        test = f"asked < {LINES * len(ahead.places)}"
        if ahead.every > 1:
            test = f"!(i & {ahead.every - 1}) && {test}"
        place = f"ahead[asked / {LINES}], asked % {LINES} * {ahead.line}"
        return [f"    if ({test}) {{ PREFETCH({place}, 0); asked++; }}"]

    def register(self, index: int) -> str:
        by_column = self.matrix_columns and self._changes[index] == {"columns"}
        return f"x{index}[k]" if by_column else f"x{index}"

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

    def matrix_pass(self, part: Part, columns: int) -> MatrixPass:
        """Spell the body of a part over a matrix, sorted by how often each line runs."""
        sums = [statement for statement in part.body if isinstance(statement, Accumulate)]
        self._numbers = {id(statement): number for number, statement in enumerate(sums)}
        self._tail = columns % self.layout.lanes != 0
        self._changes = []
        self._lets: list[Value] = []
        self.matrix_columns = columns
        lines = MatrixPass()
        for statement in part.body:
            match statement:
                case Let(value):
                    self._lets.append(value)
                    axes, name = self._axes(value), f"x{len(self._changes)}"
                    self._changes.append(axes)
                    text = self.value(value)
                    if axes == {"columns"}:
                        lines.by_column.append((name, text))
                    else:
                        target = lines.in_vector if len(axes) > 1 else lines.in_row
                        (target if axes else lines.once).append(f"const V {name} = {text};")
                case Store():
                    lines.in_vector.append(self.store(statement))
                case Accumulate():
                    lines.in_vector.append(self.accumulate(statement))
                case Prefetch() | Multiply():
                    pass
        self.matrix_columns = 0
        lines.sums = {
            axis: [(number, s) for number, s in enumerate(sums) if s.axis == axis]
            for axis in ("rows", "columns", None)
        }
        return lines

    def matrix_part(self, part: Part) -> list[str]:
        """C lines of a part over a matrix."""
        assert part.axes is not None
        assert not part.products
        assert part.groups == 1
        products = [line for s in part.body if isinstance(s, Multiply) for line in self.multiply(s)]
        self._ahead = self.ahead.get(id(part))
        lines = [*self._in_blocks(*part.axes, self.matrix_pass(part, part.axes[1])), *products]
        if not lines:
            return []
        if self._ahead is not None:
            lines = [*self._table(self._ahead), *lines]
        return ["for (long r = r0; r < r1; r++) {", *("    " + line for line in lines), "}"]

    def _in_blocks(self, rows: int, columns: int, lines: MatrixPass) -> list[str]:
        """C lines of a pass, block by block of columns, so that their sums stay in registers."""
        if not lines.in_vector:
            return []
        vectors = -(-columns // self.layout.lanes)
        most = min(_VECTORS, _SUMS // max(1, len(lines.sums["columns"])))
        blocks = -(-vectors // max(1, most))
        size, wider = divmod(vectors, blocks)
        end = wider * (size + 1)
        walked = [
            *(self._block(rows, 0, end, size + 1, lines) if wider else ()),
            *self._block(rows, end, vectors, size, lines),
        ]
        return [
            *(f"V s{number}[VL] = {{0}};" for number, _ in lines.sums["rows"]),
            *(f"V a{number} = {{0}};" for number, _ in lines.sums[None]),
            *lines.once,
            *walked,
            *self.totals(lines.sums),
        ]

    def _block(self, rows: int, first: int, end: int, size: int, lines: MatrixPass) -> list[str]:
        """C lines for vectors of columns from ``first`` to ``end``, so many at once, in all
        rows."""
        by_row, in_vectors = lines.sums["rows"], self.in_vectors
        results = [line for n, s in by_row for line in self._row_results(n, s, rows)]
        inner = [
            *in_vectors(size, self.column_values(lines)),
            f"for (long i = 0; i < {rows}; i++) {{",
            *(f"    V a{number} = {{0}};" for number, _ in by_row),
            *self._ask(),
            *("    " + line for line in (*lines.in_row, *in_vectors(size, lines.in_vector))),
            *(f"    s{number}[i % VL] = a{number};" for number, _ in by_row),
            *([f"    if (i % VL == VL - 1 || i == {rows - 1}) {{"] if results else []),
            *("        " + line for line in results),
            *(["    }"] if results else []),
            "}",
            *in_vectors(size, self.column_results(lines.sums)),
        ]
        arrays = [f"V {name}[{size}];" for name in self.arrays(lines)]
        head = f"for (long first = {first}; first < {end}; first += {size}) {{"
        return [head, *("    " + line for line in (*arrays, *inner)), "}"]

    def arrays(self, lines: MatrixPass) -> list[str]:
        """Names of what has an element per vector of columns."""
        sums = (f"a{number}" for number, _ in lines.sums["columns"])
        return [*sums, *(name for name, _ in lines.by_column)]

    def column_values(self, lines: MatrixPass) -> list[str]:
        """C lines that begin the sums of columns, and compute what is the same in all rows."""
        zeros = (f"a{number}[k] = bc(0);" for number, _ in lines.sums["columns"])
        return [*zeros, *(f"{name}[k] = {text};" for name, text in lines.by_column)]

    def in_vectors(self, count: int, lines: Iterable[str]) -> list[str]:
        """C lines for each vector ``k`` of columns of a block."""
        inner = ["const long u = (first + k) * VL; (void)u;", *lines]
        if len(inner) == 1:
            return []
        head = [f'_Pragma("GCC unroll {count}")', f"for (long k = 0; k < {count}; k++) {{"]
        return [*head, *("    " + line for line in inner), "}"]

    def totals(self, sums: Sums) -> list[str]:
        """C lines that store sums of all elements."""
        return [
            f"{self.element(access)} = total_of(a{number});"
            for number, statement in sums[None]
            for access in statement.accesses
        ]

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

    def column_results(self, sums: Sums) -> list[str]:
        """C lines that store the sums of a vector of columns."""
        return [
            f"stn({self.at(access)}, u, {access.width}, a{number}[k]);"
            if self.partial(access)
            else f"st({self.at(access)} + u, a{number}[k]);"
            for number, statement in sums["columns"]
            for access in statement.accesses
        ]
