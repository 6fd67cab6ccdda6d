"""Segments of a lowered phase as C functions: products of a part, its body, row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from elman.engines.c.matrices.matrix_loops import MatrixLoops
from elman.engines.c.products.gathering import Ones, gathered_operands
from elman.engines.c.products.panels import Panels, direct_code, product_code
from elman.engines.c.spelling.clock import Clock
from elman.engines.c.spelling.rounding import RoundedOperands
from elman.engines.c.spelling.row_prefetches import RowPrefetches
from elman.engines.c.spelling.values import WITHOUT_BASE, accesses, in_groups
from elman.lowered.layout import Layout
from elman.lowered.types import (
    Acc,
    Access,
    Let,
    Part,
    Phase,
    Prefetch,
    Product,
    Ref,
    Segment,
    Space,
    Store,
)
from elman.plan.schedule import Blocks

PARAMETERS = (
    "const C *c, long t, long t0, long r0, long r1, const long *lo, const long *hi, T *sc,"
    " int lead, long done"  # done: rows of a batched phase whose scratch can be overwritten
)
# gcc 12 loses track of the memory that pointers of some loops point to, concludes that such a
# segment has no effect, and drops its call
_EFFECT = '__asm__ volatile("" ::: "memory");'
_UNUSED = "(void)c; (void)t; (void)t0; (void)lo; (void)hi; (void)sc; (void)lead; (void)done;"


def _each_group(groups: int) -> list[str]:
    """C line before a loop over units. Rows are the outer loop, so that memory is read once: with
    groups outermost a GRU of 16 heads took as long as without this loop."""
    return [f"    for (long g = 0; g < {groups}; g++)"] if groups > 1 else []


def _each_row_and_group(rows: str, groups: int) -> list[str]:
    """C lines that begin a body for each row, and for each group in it."""
    *outer, inner = [rows, *_each_group(groups)]
    return [*outer, f"{inner} {{"]


@dataclass(frozen=True)
class ProductStyle:
    """Spelling of the products of one direction.

    Attributes:
        panels: the packed weights of each product.
        blocks: constants of blocking.
        rows: rows of a block.
        direct: the C function for unpacked weights; empty: products read panels.
        tiled: whether spikes may be gathered.
        rounded: C text of the address of a worker's rounded operands; empty: none is rounded.
    """

    panels: Mapping[Product, Panels]
    blocks: Blocks
    rows: int
    direct: str = ""
    tiled: bool = True
    rounded: str = ""


class PhasePrinter(MatrixLoops):
    """Prints the segments of one phase.

    Args:
        layout, phase: the phase and its layout.
        products: style of the direction's products.
        clock: marks the ends of products and pointwise code.
        label: name of this phase in the clock.
        accumulators: see :class:`MatrixLoops`.
        local: see :class:`Spelling`.
        ahead: prefetches of each part, by its identity.
    """

    def __init__(
        self,
        layout: Layout,
        phase: Phase,
        products: ProductStyle,
        clock: Clock,
        label: str,
        accumulators: int,
        local: Mapping[Space, str],
        ahead: Mapping[int, RowPrefetches],
    ) -> None:
        super().__init__(layout, local)
        self.ahead, self.accumulators = ahead, accumulators
        self.phase, self.style = phase, products
        multiplies = any(part.products for segment in phase.segments for part in segment.parts)
        self.multiplied = clock.mark(f"{label}: products") if multiplies else []
        self.computed = clock.mark(f"{label}: pointwise") if phase.segments else []
        self._columns: list[int] = []  # of the part that is printed: first of each product

    def acc(self, acc: Acc) -> str:
        return f"ld(row + ({self._columns[acc.product]} + {acc.index} * nv + j) * VL)"

    def operand(self, access: Access) -> tuple[str, str]:
        """C text of an operand's address at a block's first row, and of its row stride."""
        return f"({self.at(access, 'rb')})", self.stride(access)

    def segment(self, name: str, segment: Segment) -> str:
        """The C function of one segment."""
        lines = self._scalars(segment.scalars)
        for part in segment.parts:
            lines += self._part(part)
        lines = lines or ["(void)r0; (void)r1;"]  # the segment of a state that does not change
        bases = dict(self.base(a) for a in accesses(segment) if a.region.space not in WITHOUT_BASE)
        declared = [f"T *const {base} = (T *)({text});" for base, text in bases.items()]
        unused = f"{_UNUSED} (void)more;" if self.ahead else _UNUSED
        inner = "\n".join("    " + line for line in (unused, _EFFECT, *declared, *lines))
        more = ", int more" if self.ahead else ""
        return f"NOINLINE void {name}({PARAMETERS}{more}) {{\n{inner}\n}}"

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
        if part.axes is not None:
            return [*self.matrix_part(part), *self.computed]
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
        ones, rounded, operand = self._ones(part), list[str](), self.operand
        if self.style.rounded:
            style, lanes = self.style, self.layout.lanes
            places = RoundedOperands(part, style.blocks, lanes, style.rounded)
            rounded, operand = places.lines(self.operand), places.operand
        # a product without pointwise code is stored by its tiles, not by way of the buffer
        if not self.style.direct and (target := self._target(part)) is not None:
            place = f"({self.at(target, 'rb')}) + v * VL"
            code = product_code(
                panels[0], 0, operand, self.style.blocks.k, place, self.stride(target), ones
            )
            lines = [*code, *self.multiplied]
            lines = self._blocks(panels[0], gate_block, lines, ones=ones, rounded=rounded)
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
                calls += product_code(panel, first, operand, self.style.blocks.k, buf, ones=ones)
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
        return self._blocks(panels[0], gate_block, lines, buffer, ones, rounded)

    def _blocks(
        self,
        panel: Panels,
        gate_block: int,
        lines: list[str],
        declared: Sequence[str] = (),
        ones: Mapping[Access, Ones] = MappingProxyType({}),
        rounded: Sequence[str] = (),
    ) -> list[str]:
        """Run ``lines`` for every block of rows and every panel; scan for ones, and round operands
        (``rounded``), once per block, whatever the number of panels."""
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
            *("        " + line for line in (*sought, *rounded)),
            f"        for (long v = lo[{gate_block}]; v < hi[{gate_block}]; v += {width}) {{",
            f"            UNUSED long nv = {vectors} - v < {width} ? {vectors} - v : {width};",
            *("            " + line for line in lines),
            "        }",
            "    }",
            "}",
        ]

    def _target(self, part: Part) -> Access | None:
        """Column of a part whose only product is stored without pointwise code; else None."""
        match part:
            case Part(_, (Product(accs=(_,)),), (Let(Acc()), Store(access, Ref(0)), *rest)):
                stored = all(isinstance(statement, Prefetch) for statement in rest)
                return access if stored and not self.partial(access) else None
            case _:
                return None

    def _ones(self, part: Part) -> dict[Access, Ones]:
        """Operands of a part that are scanned for ones."""
        if self.style.direct or not self.style.tiled:
            return {}
        size = self.layout.size(part.gate_block)
        blocks = self.style.blocks
        operands = [a for p in part.products for a in gathered_operands(p, size, blocks)]
        picked = self.style.panels[part.products[0]].picked
        return {
            access: Ones(number, access.units, self.style.rows, picked)
            for number, access in enumerate(dict.fromkeys(operands))
        }
