"""Lowered phases as C: loads, values, stores, products of a part, a function per segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from elman.engines.c.clock import Clock
from elman.engines.c.gathering import Ones, gathered_operands
from elman.engines.c.ops import (
    number,
    spell,
    spell_across,
    spell_reduce,
    spell_sum,
)
from elman.engines.c.products import Panels, direct_code, product_code
from elman.lowered.layout import Layout
from elman.lowered.types import (
    Acc,
    Access,
    Across,
    Affine,
    Const,
    Let,
    Load,
    Matrix,
    Op,
    Part,
    Phase,
    Prefetch,
    Product,
    Reduce,
    Ref,
    Segment,
    Space,
    Statement,
    Store,
    Value,
)
from elman.plan.schedule import Blocks

PARAMETERS = (
    "const C *c, long t, long t0, long r0, long r1, const long *lo, const long *hi, T *sc,"
    " int lead, long done"  # done: rows of a batched phase whose scratch is free again
)
_UNUSED = "(void)c; (void)t; (void)t0; (void)lo; (void)hi; (void)sc; (void)lead; (void)done;"
# memory that is addressed from the call's context, not from a base of the segment
_OF_CALL = {Space.VECTOR: "c->vec", Space.MATRIX: "c->mat"}
_OF_WEIGHTS = {Space.WEIGHT: "c->w", Space.D_WEIGHT: "c->dw"}


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
    """C text of an offset, of group ``g`` where there are several."""
    return f"{access.offset} + g * {access.group}" if access.group else str(access.offset)


def in_groups(groups: int, lines: list[str]) -> list[str]:
    """C lines for each group ``g``."""
    if groups == 1 or not lines:
        return lines
    return [f"for (long g = 0; g < {groups}; g++) {{", *("    " + line for line in lines), "}"]


def _each_group(groups: int) -> list[str]:
    """C line before a loop over units: rows are walked through once, group behind group."""
    return [f"    for (long g = 0; g < {groups}; g++)"] if groups > 1 else []


def _each_row_and_group(rows: str, groups: int) -> list[str]:
    """C lines that begin a body for each row, and for each group in it."""
    *outer, inner = [rows, *_each_group(groups)]
    return [*outer, f"{inner} {{"]


class Spelling:
    """C text of accesses and values in a row ``r``, at a unit ``u``.

    Args:
        layout: of the program.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def base(self, access: Access) -> tuple[str, str]:
        """Name and text of the pointer that a segment declares for an access."""
        if access.region.space is Space.SUMMED:
            return "cs", f"c->carry + 2 * c->B * {self.layout.carry_row}"
        return base_of(access)

    def stride(self, access: Access) -> str:
        """C text of the distance between rows."""
        region = access.region
        if region.space is Space.INPUT:
            return f"c->in_l[{region.array}]"
        return "c->dy_l" if region.space is Space.D_OUTPUT else str(region.row)

    def index(self, access: Access, row: str) -> str:
        """C text of where a column begins in a row (elements behind the base)."""
        region = access.region
        if region.space is Space.SCRATCH and region.batched:
            row = f"({row} - done)"
        offset = f" + {_offset(access)}" if access.offset or access.group else ""
        return f"{row} * {self.stride(access)}{offset}"

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
        """C text of the first element of what is addressed from the context."""
        region = access.region
        if region.space is Space.VECTOR:
            return f"{self.vectors} + {_offset(access)}"
        if region.space is Space.MATRIX:
            return f"({_OF_CALL[region.space]} + {_offset(access)})"
        return f"({_OF_WEIGHTS[region.space]}[{region.array}] + {_offset(access)})"

    vectors = _OF_CALL[Space.VECTOR]  # C text of where loop-invariant vectors lie

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

    def load(self, access: Access) -> str:
        """C text of a column, one vector of units."""
        if access.scalar:
            return f"bc({self.element(access)})"
        if self.partial(access):
            return f"ldn({self.at(access)}, u, {access.width})"
        return f"ld({self.at(access)} + u)"

    def partial(self, access: Access) -> bool:
        """Whether a vector may reach over the end of what belongs to a column."""
        whole = access.width is None or access.width % self.layout.lanes == 0
        return not whole or access.region.space in (*_OF_WEIGHTS, Space.MATRIX)

    def store(self, store: Store) -> str:
        """C statement that writes one vector of units."""
        access, text = store.access, self.value(store.value)
        if self.partial(access):
            return f"stn({self.at(access)}, u, {access.width}, {text});"
        return f"st({self.at(access)} + u, {text});"

    def value(self, value: Value) -> str:
        """C text of a value."""
        match value:
            case Ref(index):
                return f"x{index}"
            case Const(constant):
                return f"bc({number(constant)})"
            case Load(access):
                return self.load(access)
            case Acc():
                return self.acc(value)
            case Op(name, args, stream):
                return spell(name, [self.value(arg) for arg in args], stream)
            case Affine(coefs, bias, args):
                return spell_sum(coefs, bias, [self.value(arg) for arg in args])
            case Across(_, column):
                return spell_across(value, self.column(column))
            case Reduce(name, columns, mean):
                arrays = [(self.column(column), column.units) for column in columns]
                at_hand = self.element(mean.access) if isinstance(mean, Load) else ""
                return spell_reduce(name, arrays, at_hand)

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
        return lines

    def prefetch(self, access: Access, write: bool) -> str:
        """C statement that asks for a column a step ahead: behind it where the forward writes,
        before it where the backward reads."""
        row = f"(r {'+' if write else '-'} c->B)"
        name, _ = self.base(access)
        return f"PREFETCH({name}, {self.index(access, row)} + u, {int(write)});"


def accesses(segment: Segment) -> Iterator[Access]:
    """Every column that a segment reads or writes."""

    def of(value: Value) -> Iterator[Access]:
        match value:
            case Load(access) | Across(_, access):
                yield access
            case Op(_, args) | Affine(_, _, args):
                for arg in args:
                    yield from of(arg)
            case Reduce(_, columns):
                yield from columns
            case _:
                pass

    for store in segment.scalars:
        yield from of(store.value)
        yield store.access
    for part in segment.parts:
        for product in part.products:
            yield from product.operands
        for statement in part.body:
            match statement:
                case Let(value):
                    yield from of(value)
                case Store(access, value):
                    yield access
                case Prefetch(access):
                    yield access


@dataclass(frozen=True)
class ProductStyle:
    """How the products of one direction are spelled.

    Attributes:
        panels: the packed weights of each product.
        blocks: how they are cut.
        rows: of a block.
        direct: the C function for weights that are read as they lie; empty: of the panels.
        tiled: whether spikes may be gathered.
    """

    panels: Mapping[Product, Panels]
    blocks: Blocks
    rows: int
    direct: str = ""
    tiled: bool = True


class PhasePrinter(Spelling):
    """Prints the segments of one phase.

    Args:
        layout, phase: what is printed.
        products: of the direction.
        clock: marks how long products and pointwise code take.
        label: what the clock calls this phase.
    """

    def __init__(
        self, layout: Layout, phase: Phase, products: ProductStyle, clock: Clock, label: str
    ) -> None:
        super().__init__(layout)
        self.phase, self.style = phase, products
        multiplies = any(part.products for segment in phase.segments for part in segment.parts)
        self.multiplied = clock.mark(f"{label}: products") if multiplies else []
        self.computed = clock.mark(f"{label}: pointwise") if phase.segments else []
        self._columns: list[int] = []  # of the part that is printed: first of each product

    def acc(self, acc: Acc) -> str:
        """See :meth:`Spelling.acc`."""
        return f"ld(row + ({self._columns[acc.product]} + {acc.index} * nv + j) * VL)"

    def operand(self, access: Access) -> tuple[str, str]:
        """C text of an operand's address at a block's first row, and of its row stride."""
        return f"({self.at(access, 'rb')})", self.stride(access)

    def segment(self, name: str, segment: Segment) -> str:
        """The C function of one segment."""
        lines = self._scalars(segment.scalars)
        for part in segment.parts:
            lines += self._part(part)
        context = (*_OF_CALL, *_OF_WEIGHTS, Space.SCALAR)
        bases = dict(self.base(a) for a in accesses(segment) if a.region.space not in context)
        declared = [f"T *const {base} = (T *)({text});" for base, text in bases.items()]
        inner = "\n".join("    " + line for line in (_UNUSED, *declared, *lines))
        return f"NOINLINE void {name}({PARAMETERS}) {{\n{inner}\n}}"

    def _scalars(self, stores: Sequence[Store]) -> list[str]:
        if not stores:
            return []
        head = ["for (long r = r0; r < r1; r++) {", "    const long u = 0; (void)u;"]
        lines = [
            f"    {'if (lead) ' if store.lead else ''}{self.scalar_store(store)}"
            for store in stores
        ]
        return [*head, *lines, "}", *self.computed]

    def _part(self, part: Part) -> list[str]:
        gate_block = self.layout.gate_blocks.index(part.gate_block)
        if not part.products:
            lines = self.body(part.body)
            if not lines:
                return []
            body = "\n            ".join(lines)
            return [
                "for (long r = r0; r < r1; r++)",
                *_each_group(part.groups),
                f"    for (long v = lo[{gate_block}]; v < hi[{gate_block}]; v++) {{",
                "        long u = v * VL; (void)u;",
                f"            {body}",
                "    }",
                *self.computed,
            ]
        panels = [self.style.panels[product] for product in part.products]
        ones = self._ones(part)
        if not self.style.direct and (target := self._target(part)) is not None:
            place = f"({self.at(target, 'rb')}) + v * VL"
            code = product_code(
                panels[0], 0, self.operand, self.style.blocks.k, place, self.stride(target), ones
            )
            lines = self._blocks(panels[0], gate_block, [*code, *self.multiplied], ones=ones)
            return in_groups(part.groups, lines)
        columns = sum(panel.accs * panel.width for panel in panels)
        buf = f"buf + g * {columns} * VL" if part.groups > 1 else "buf"
        calls: list[str] = []
        self._columns, first = [], 0
        for panel in panels:
            self._columns.append(first)
            if self.style.direct:
                dots = self.style.direct
                calls += direct_code(panel, first, self.operand, self.matrix, dots, buf)
            else:
                calls += product_code(
                    panel, first, self.operand, self.style.blocks.k, buf, ones=ones
                )
            first += panel.accs * panel.width
        body = "\n                ".join(self.body(part.body))
        call = "\n        ".join(in_groups(part.groups, calls))
        row = "const T *row = buf + (r - rb) * LDB"
        if part.groups > 1:
            row = f"{row} + g * {columns} * VL"
        lines = [
            call,
            *self.multiplied,
            *_each_row_and_group("for (long r = rb; r < rb + m; r++)", part.groups),
            f"    {row};",
            "    for (long j = 0; j < nv; j++) {",
            "    long u = (v + j) * VL; (void)u;",
            f"    {body}",
            "    }",
            "}",
            *self.computed,
        ]
        buffer = [
            f"    enum {{ LDB = {columns * part.groups} * VL }};",
            f"    T buf[{self.style.rows} * LDB] __attribute__((aligned(64)));",
        ]
        return self._blocks(panels[0], gate_block, lines, buffer, ones)

    def _blocks(
        self,
        panel: Panels,
        gate_block: int,
        lines: list[str],
        declared: Sequence[str] = (),
        ones: Mapping[Access, Ones] = MappingProxyType({}),
    ) -> list[str]:
        """Lines that are run for every block of rows and every panel; ones are looked for once per
        block."""
        rows, vectors, width = self.style.rows, panel.vectors, panel.width
        lists = [line for operand_ones in ones.values() for line in operand_ones.declared()]
        finite = "const int finite = all_finite(c->flags, c->workers);"
        sought = [
            operand_ones.sought(*self.operand(access)) for access, operand_ones in ones.items()
        ]
        return [
            "{",
            *declared,
            *("    " + line for line in ([*lists, finite] if ones else [])),
            f"    for (long rb = r0; rb < r1; rb += {rows}) {{",
            f"        long m = r1 - rb < {rows} ? r1 - rb : {rows};",
            *("        " + line for line in sought),
            f"        for (long v = lo[{gate_block}]; v < hi[{gate_block}]; v += {width}) {{",
            f"            UNUSED long nv = {vectors} - v < {width} ? {vectors} - v : {width};",
            *("            " + line for line in lines),
            "        }",
            "    }",
            "}",
        ]

    def _target(self, part: Part) -> Access | None:
        """Where a part's only product is stored whole, if nothing else is done with it."""
        match part:
            case Part(_, (Product(accs=(_,)),), (Let(Acc()), Store(access, Ref(0)), *rest)):
                stored = all(isinstance(statement, Prefetch) for statement in rest)
                return access if stored and not self.partial(access) else None
            case _:
                return None

    def _ones(self, part: Part) -> dict[Access, Ones]:
        """Operands of a part that are scanned for ones."""
        if self.style.direct or not self.style.tiled or part.groups > 1:
            return {}
        size = self.layout.size(part.gate_block)
        blocks = self.style.blocks
        operands = [a for p in part.products for a in gathered_operands(p, size, blocks)]
        return {
            access: Ones(number, access.units, self.style.rows)
            for number, access in enumerate(dict.fromkeys(operands))
        }
