"""Parts over matrices per sample as C: one pass over the elements, with sums along either axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elman.engines.c.spelling.values import Spelling
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


@dataclass(frozen=True)
class Subscripts:
    """C subscripts of registers, which there are for each vector ``k`` of columns or row ``q``.

    Attributes:
        sums: by the axis along which there are several sums.
        values: by the axis along which a value changes.
        keeps: whether what is loaded stays in a register.
    """

    sums: Mapping[Axis | None, str]
    values: Mapping[Axis, str]
    keeps: bool = False


def _sides(lanes: int, distance: int) -> tuple[list[int], list[int]]:
    """Elements of two vectors, behind one another, whose sums halve what is left of both: such as
    processors pick without a table."""
    if distance == 1 and lanes >= 4:
        low = [g + n + side for g in range(0, lanes, 4) for n in (0, 1) for side in (0, lanes)]
        return low, [n + 2 for n in low]
    if distance == 4 and lanes == 16:
        return [*range(8), *range(16, 24)], [*range(8, 16), *range(24, 32)]
    if distance == 8 and lanes == 16:
        low = [first + n for first in (0, 8, 16, 24) for n in range(4)]
        return low, [n + 4 for n in low]
    low = [i if not i & distance else lanes + i - distance for i in range(lanes)]
    return low, [n + distance for n in low]


def row_totals(lanes: int) -> str:
    """C function ``totals_of``: the sums of VL vectors, in a vector."""
    lines = ["INLINE V totals_of(const V *x) {", *(f"    V r{i} = x[{i}];" for i in range(lanes))]
    distance = 1
    while distance < lanes:
        low, high = (", ".join(map(str, side)) for side in _sides(lanes, distance))
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
        by_row: names and C texts of what is computed in each row, before its vectors.
        in_vector: for each vector of a row.
        sums: the part's accumulations by axis, each with its number.
    """

    once: list[str] = field(default_factory=list)
    by_column: list[tuple[str, str]] = field(default_factory=list)
    by_row: list[tuple[str, str]] = field(default_factory=list)
    in_vector: list[str] = field(default_factory=list)
    sums: Sums = field(default_factory=dict)


class MatrixSpelling(Spelling):
    """Spells parts over a matrix: row ``i``, columns from ``u`` on, which are vector ``k`` of those
    that a row is walked through for, and what is summed up.

    What is the same in all rows, or columns, is computed before the loop over these: a compiler
    cannot know that no store changes it.
    """

    subscripts = Subscripts({"columns": "[k]"}, {"columns": "[k]"})

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
        target = f"a{number}{self.subscripts.sums.get(statement.axis, '')}"
        return " ".join(f"{target} += {text};" for text in texts)

    def register(self, index: int) -> str:
        axes = self._changes[index] if self.matrix_columns else _BOTH_AXES
        subscripts = [self.subscripts.values.get(axis, "") for axis in axes if len(axes) == 1]
        return "".join([f"x{index}", *subscripts])

    def _axes(self, value: Value) -> frozenset[Axis]:
        """The axes along which a value changes."""
        match value:
            case Ref(index):
                return self._changes[index]
            case Along(_, axis):
                return frozenset((axis,))
            case Op("uniform"):
                return _BOTH_AXES  # of a key that all elements share
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
                    elif axes == {"rows"}:
                        lines.by_row.append((name, text))
                    else:
                        target = lines.in_vector if axes else lines.once
                        target.append(f"const V {name} = {text};")
                        if self.subscripts.keeps and isinstance(value, Load) and axes:
                            target[-1] = f"V {name} = {text}; KEEP({name});"
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

    def arrays(self, lines: MatrixPass) -> list[str]:
        """Names of what has an element per vector of columns."""
        sums = (f"a{number}" for number in self.sums_by_column(lines))
        return [*sums, *(name for name, _ in lines.by_column)]

    def sums_by_column(self, lines: MatrixPass) -> list[int]:
        """Numbers of the sums that have a register for each vector of columns."""
        axes = self.subscripts.sums
        return [n for axis, s in lines.sums.items() if axes.get(axis) == "[k]" for n, _ in s]

    def column_values(self, lines: MatrixPass) -> list[str]:
        """C lines that begin the sums of columns, and compute what is the same in all rows."""
        zeros = (f"a{number}[k] = bc(0);" for number in self.sums_by_column(lines))
        return [*zeros, *(f"{name}[k] = {text};" for name, text in lines.by_column)]

    def totals(self, sums: Sums, name: str) -> list[str]:
        """C lines that store sums of all elements, which are in vectors with a name."""
        return [
            f"{self.element(access)} = total_of({name}{number});"
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

    def column_results(self, sums: Sums) -> list[str]:
        """C lines that store the sums of a vector of columns."""
        return [
            f"stn({self.at(access)}, u, {access.width}, a{number}[k]);"
            if self.partial(access)
            else f"st({self.at(access)} + u, a{number}[k]);"
            for number, statement in sums["columns"]
            for access in statement.accesses
        ]
