"""C text of memory and values: bases, rows, loads, stores, statements of a body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from elman.engines.c.spelling.ops import (
    number,
    spell,
    spell_across,
    spell_reduce,
    spell_sum,
)
from elman.lowered.layout import Layout
from elman.lowered.types import (
    Acc,
    Access,
    Accumulate,
    Across,
    Affine,
    Along,
    Const,
    Let,
    Load,
    Matrix,
    Moved,
    Multiply,
    Op,
    Prefetch,
    Reduce,
    Ref,
    Segment,
    Space,
    Statement,
    Store,
    Value,
    columns_of,
)

# memory that is addressed from the call's context, not from a base of the segment
_OF_CALL = {Space.VECTOR: "c->vec", Space.MATRIX: "c->mat"}
_OF_WEIGHTS = {Space.WEIGHT: "c->w", Space.D_WEIGHT: "c->dw"}
# memory that needs no base: it belongs to the call, or to each worker
WITHOUT_BASE = (*_OF_CALL, *_OF_WEIGHTS, Space.SCALAR)


def base_of(access: Access) -> tuple[str, str]:
    """Name of the pointer to a region's first row in a phase, and its C text."""
    region = access.region
    a, row = region.array, region.row
    after = "t + 1" if access.step else "t"
    if region.space is Space.INPUT:
        return f"in{a}", f"c->in[{a}] + in_row(c, t, c->in_t[{a}], c->in_l[{a}])"
    if region.space is Space.D_OUTPUT:
        return "dy", "c->dy + in_row(c, t, c->dy_t, c->dy_l)"
    if region.space in (Space.STATE, Space.GATHERED):
        rows = f"c->st[{a}] + state_row(c, {after}, c->ring[{a}]) * {row}"
        if region.space is Space.GATHERED:
            rows = f"c->prev[{a}]" if region.always else f"c->rows ? c->prev[{a}] : {rows}"
        return f"{'nx' if access.step else 'st'}{a}", rows
    # carry and scratch have two rows, by the parity of t: a worker that is a step ahead writes the
    # row that nobody reads, so one barrier per step suffices
    if region.space is Space.CARRY:
        rows = f"c->carry + (({after}) & 1) * c->B * {row}"
        return "cn" if access.step else "ca", rows
    if region.space is Space.SCRATCH:
        return "sr", f"c->scratch{'' if region.batched else f' + (t & 1) * c->B * {row}'}"
    name, text = {
        Space.OUTPUT: ("out", f"c->out + first_row(c, t) * {row}"),
        Space.D_INPUT: (f"din{a}", f"c->din[{a}] + first_row(c, t) * {row}"),
        Space.TAPE: ("tape", f"c->tape + first_row(c, t) * {row}"),
        Space.CHUNK: ("ch", f"c->chunk_rows + (first_row(c, t) - first_row(c, t0)) * {row}"),
    }[region.space]
    return name, text


def _offset(access: Access) -> str:
    """C text of an offset, of group ``g`` if there are several."""
    return f"{access.offset} + g * {access.group}" if access.group else str(access.offset)


def in_groups(groups: int, lines: list[str]) -> list[str]:
    """C lines for each group ``g``."""
    if groups == 1 or not lines:
        return lines
    return [f"for (long g = 0; g < {groups}; g++) {{", *("    " + line for line in lines), "}"]


# rows of the matrices of a worker's sample
MATRIX_ROWS = {Space.LOCAL: "2", Space.REPLAYED: "(c->chunk + 1)"}


def in_lines(elements: int) -> int:
    """A number of elements rounded up to whole cache lines, in either dtype."""
    return -(-elements // 16) * 16


def pointers_size(layout: Layout) -> int:
    """Elements of a worker's pointers to matrices before and after a step, in whole cache lines;
    they lie before its matrices in memory."""
    return in_lines(4 * len(layout.matrices))


def matrix_pointer(layout: Layout, array: int, step: int) -> str:
    """C text of the pointer to the matrix of the worker's sample before a step, or (1) after it."""
    before = f"{MATRIX_ROWS[Space.LOCAL]} * {layout.matrix_rows} + {pointers_size(layout)}"
    return f"((T **)(sc - ({before})))[{2 * sorted(layout.matrices).index(array) + step}]"


def matrix_address(layout: Layout, array: int, space: Space, row: str) -> str:
    """C text of the address of a matrix of the worker's sample, before the worker's scalars."""
    behind = sum(layout.matrix_row(k) for k in layout.matrices if k >= array)
    return f"sc - {MATRIX_ROWS[space]} * {behind} + ({row}) * {layout.matrix_row(array)}"


class Spelling:
    """C text of accesses and values in a row ``r``, at a unit ``u``.

    Args:
        layout: of the program.
        local: kinds of memory that each worker has for its current sample, after its scalars: C
            text of the distance.
    """

    def __init__(self, layout: Layout, local: Mapping[Space, str] = MappingProxyType({})) -> None:
        self.layout, self.local = layout, local

    def base(self, access: Access) -> tuple[str, str]:
        """Name and text of the pointer that a segment declares for an access."""
        space = access.region.space
        if space is Space.SUMMED:
            return "cs", f"c->carry + 2 * c->B * {self.layout.carry_row}"
        if space is Space.D_INPUT and self.layout.steps > 1:
            name, text = base_of(access)
            return name, f"{text} * {self.layout.steps}"
        if space in (Space.LOCAL, Space.REPLAYED):
            return self._matrix_base(access)
        name, text = base_of(access)
        if space in self.local:
            step = f" + (t - t0) * {access.region.row}" if space is Space.CHUNK else ""
            text = f"sc + {self.local[space]}{step}"
        return name, text

    def _matrix_base(self, access: Access) -> tuple[str, str]:
        """Name and text of the pointer to the matrix of the worker's sample before, or after, a
        step."""
        region, after = access.region, "t + 1" if access.step else "t"
        name = f"{'nx' if access.step else 'st'}{region.array}"
        if region.space is Space.LOCAL:
            return name, matrix_pointer(self.layout, region.array, access.step)
        return name, matrix_address(self.layout, region.array, region.space, f"{after} - t0")

    def stride(self, access: Access) -> str:
        """C text of the distance between rows."""
        region = access.region
        if region.space is Space.INPUT:
            return f"c->in_l[{region.array}]"
        if region.space is Space.OUTPUT:
            return str(region.row // self.layout.steps)
        return "c->dy_l" if region.space is Space.D_OUTPUT else str(region.row)

    def index(self, access: Access, row: str) -> str:
        """C text of the index of a column in a row (elements after the base)."""
        region = access.region
        if region.space in self.local:
            row = f"({row} - r0)"
        elif region.space is Space.SCRATCH and region.batched:
            row = f"({row} - done)"
        steps, place = self.layout.steps, ""
        if steps > 1 and region.space in (Space.OUTPUT, Space.D_OUTPUT):
            width = self.layout.output_width // steps
            step, column = divmod(access.offset, width)
            distance = f"c->B * {width}" if region.space is Space.OUTPUT else f"c->dy_t / {steps}"
            place = f" + {step} * ({distance}) + {column}"
        elif access.offset or access.group:
            place = f" + {_offset(access)}"
        return f"{row} * {self.stride(access)}{place}"

    def at(self, access: Access, row: str = "r") -> str:
        """C text of a column's address in a row."""
        region = access.region
        if region.space in _OF_CALL or region.space in _OF_WEIGHTS:
            rows = f" + {row} * {region.row}" if region.space is not Space.VECTOR else ""
            return f"{self.start(access)}{rows}"
        if region.space is Space.SCALAR:
            return f"sc + {self.scalar(access)}"
        return f"{self.base(access)[0]} + {self.index(access, row)}"

    def start(self, access: Access) -> str:
        """C text of the address of a column that is addressed from the context."""
        region = access.region
        if region.space is Space.VECTOR:
            return f"{self.vectors} + {_offset(access)}"
        if region.space is Space.MATRIX:
            return f"({_OF_CALL[region.space]} + {_offset(access)})"
        return f"({_OF_WEIGHTS[region.space]}[{region.array}] + {_offset(access)})"

    vectors = _OF_CALL[Space.VECTOR]  # C text of the address of loop-invariant vectors

    def scalar(self, access: Access) -> str:
        """C text of the index of a scalar of the phase, in row r."""
        return f"(r - r0) * {access.region.row} + {_offset(access)}"

    def matrix(self, matrix: Matrix) -> tuple[str, str]:
        """C text of a matrix's first element, and of its row length."""
        return self.start(matrix.access), str(matrix.access.region.row)

    def element(self, access: Access) -> str:
        """C text of a scalar in memory."""
        space = access.region.space
        if space is Space.SCALAR:
            return f"sc[{self.scalar(access)}]"
        if space is Space.VECTOR:
            return f"{self.vectors}[{_offset(access)}]"
        return f"*({self.at(access)})"

    matrix_columns = 0  # columns of the matrix per sample whose part is printed; else 0

    @property
    def _unit(self) -> str:
        """C text of the first unit of a vector: of a matrix they count row by row."""
        return f"i * {self.matrix_columns} + u" if self.matrix_columns else "u"

    def _units(self, access: Access) -> tuple[str, int]:
        """C text of the address of a column's units (of row ``i`` of a matrix), and their number if
        a vector may reach over the end."""
        if columns := self.matrix_columns:
            limit = columns if columns % self.layout.lanes else 0
            return f"{self.at(access)} + i * {columns}", limit
        return self.at(access), (access.width or 0) if self.partial(access) else 0

    def load(self, access: Access) -> str:
        """C text of a column, one vector of units."""
        if access.scalar:
            return f"bc({self.element(access)})"
        address, limit = self._units(access)
        return f"ldn({address}, u, {limit})" if limit else f"ld({address} + u)"

    def _along(self, value: Along) -> str:
        """C text of a vector along an axis of a matrix."""
        access = value.access
        if value.axis == "rows":
            return f"bc(({self.at(access)})[i])"
        if self.partial(access):
            return f"ldn({self.at(access)}, u, {access.width})"
        return f"ld({self.at(access)} + u)"

    def _moved(self, value: Moved) -> str:
        """C text of a vector of a matrix whose elements are those of another matrix at other
        places."""
        place, rows, columns = self.at(value.access), value.rows, value.columns
        if value.name == "swapaxes":
            return f"strided({place} + i, {columns}, u, {rows})"
        if value.name == "place":
            first, end = value.down, value.down + rows
            row = f"ldn({place} + (i - {first}) * {columns}, u, {columns})"
            return f"(i < {first} || i >= {end} ? bc(-(T)0) : {row})"
        row = f"(i + {value.down})"
        if value.name == "roll":
            row = f"(i + {-value.down % rows}) % {rows}"
        return f"ldn({place} + {row} * {columns}, u, {columns})"

    def partial(self, access: Access) -> bool:
        """Whether a vector may reach over the end of a column."""
        # callers' arrays are never padded, and the last row ends where other memory may begin
        whole = access.width is None or access.width % self.layout.lanes == 0
        return not whole or access.region.space in (*_OF_WEIGHTS, Space.MATRIX)

    def store(self, store: Store) -> str:
        """C statement that writes one vector of units."""
        text = self.value(store.value)
        address, limit = self._units(store.access)
        return f"stn({address}, u, {limit}, {text});" if limit else f"st({address} + u, {text});"

    def value(self, value: Value) -> str:
        """C text of a value."""
        match value:
            case Ref(index):
                return self.register(index)
            case Const(constant):
                return f"bc({number(constant)})"
            case Load(access):
                return self.load(access)
            case Acc():
                return self.acc(value)
            case Op(name, args, stream):
                return spell(name, [self.value(arg) for arg in args], self._unit, stream)
            case Affine(coefs, bias, args):
                return spell_sum(coefs, bias, [self.value(arg) for arg in args])
            case Along():
                return self._along(value)
            case Moved():
                return self._moved(value)
            case Across(_, column):
                return spell_across(value, self.column(column))
            case Reduce(name, columns, mean):
                arrays = [(self.column(column), column.units) for column in columns]
                at_hand = self.element(mean.access) if isinstance(mean, Load) else ""
                return spell_reduce(name, arrays, at_hand)

    def register(self, index: int) -> str:
        """C text of an earlier value of the body."""
        return f"x{index}"

    def acc(self, acc: Acc) -> str:
        """C text of a column of the part's products."""
        raise NotImplementedError

    def column(self, access: Access) -> str:
        """C text of the address of all units of a column in row r."""
        return f"({self.at(access)})"

    def scalar_store(self, store: Store) -> str:
        """C statement that computes a scalar in row r."""
        target, text = self.element(store.access), self.value(store.value)
        if isinstance(store.value, Reduce):
            return f"{{ T s = {text}; {target} = s; }}"
        return f"{{ const V x = {text}; {target} = LANE(x, 0); }}"

    def body(self, statements: Iterable[Statement]) -> list[str]:
        """C statements for one vector of units in one row."""
        lines: list[str] = []
        count = 0
        for statement in statements:
            match statement:
                case Let(value):
                    lines.append(f"const V x{count} = {self.value(value)};")
                    count += 1
                case Store():
                    lines.append(self.store(statement))
                case Prefetch(access, write):
                    lines.append(self.prefetch(access, write))
                case Accumulate():
                    lines.append(self.accumulate(statement))
        return lines

    def accumulate(self, statement: Accumulate) -> str:
        """C statement that combines one vector with a part's partial reduction."""
        raise NotImplementedError

    def prefetch(self, access: Access, write: bool) -> str:
        """C statement that prefetches a column of the next step: the row after this one where the
        forward writes, before it where the backward reads."""
        row = f"(r {'+' if write else '-'} c->B)"
        name, _ = self.base(access)
        return f"PREFETCH({name}, {self.index(access, row)} + u, {int(write)});"


def accesses(segment: Segment) -> Iterator[Access]:
    """Every column that a segment reads or writes."""
    for store in segment.scalars:
        yield from (access for access, _ in columns_of(store.value))
        yield store.access
    for part in segment.parts:
        for product in part.products:
            yield from product.operands
        for statement in part.body:
            if isinstance(statement, Accumulate | Multiply):
                yield from statement.accesses
                if isinstance(statement, Multiply):
                    yield from (statement.left, statement.right)
                    continue
            elif not isinstance(statement, Let):
                yield statement.access
            if not isinstance(statement, Prefetch):
                yield from (access for access, _ in columns_of(statement.value))
