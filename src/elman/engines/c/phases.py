"""One segment of one phase as a C function: scalars, products, straight-line code, stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from elman.engines.c.clock import Clock
from elman.engines.c.gathering import Gathering, Ones
from elman.engines.c.layout import CLayout, product_parts
from elman.engines.c.ops import number, spell, spell_over_units, spell_reduce, spell_sum
from elman.engines.c.places import Places, RowAddress
from elman.engines.c.products import Panels, Weights, direct_code, product_code
from elman.ir.graph import Node
from elman.ir.ops import OPS
from elman.ir.pair import loop_invariant
from elman.ir.types import dim_size
from elman.plan.program import Buffer, Bundle, Part, Phase, Segment

PARAMETERS = (
    "const C *c, long t, long t0, long r0, long r1, const long *lo, const long *hi, T *sc,"
    " int lead, long done"  # done: rows of a batched phase whose scratch is free again
)


@dataclass(frozen=True)
class ProductStyle:
    """How the products of one sweep are spelled.

    Attributes:
        panels: the packed weights of each bundle.
        gathering: which products look for the ones of spikes.
        rows, k: rows and inner elements of a block.
        direct: where weights lie, for products that do not use the panels; else None.
    """

    panels: dict[Bundle, Panels]
    gathering: Gathering
    rows: int
    k: int
    direct: Weights | None = None


class PhaseWriter(Places):
    """Spells the segments of one phase.

    Args:
        layout, phase, chunk, loop, gathers_held: as of :class:`Places`.
        products: of the sweep.
        clock: marks how long products and pointwise code take.
        label: what the clock calls this phase.
        later: 1 or -1: the next step of the loop is t + 1 or t - 1.
    """

    vectors = "c->vec"  # C text of where loop-invariant vectors and scalars lie

    def __init__(
        self,
        layout: CLayout,
        phase: Phase,
        chunk: tuple[list[int], int],
        products: ProductStyle,
        *,
        loop: bool,
        clock: Clock,
        label: str,
        later: int,
        gathers_held: bool,
    ) -> None:
        super().__init__(layout, phase, chunk, loop=loop, gathers_held=gathers_held)
        self.panels, self.gathering = products.panels, products.gathering
        self.row_block, self.k_block, self.direct = products.rows, products.k, products.direct
        self.later = later if loop else 0
        self.multiplied = clock.mark(f"{label}: products") if product_parts([phase]) else []
        self.computed = clock.mark(f"{label}: pointwise") if phase.segments else []
        self.scalars = sum(1 for buffer in phase.buffers.values() if buffer.where == "scalar")

    def _constant(self, value: Node) -> str | None:
        """C text of a value that is the same in every row, or None."""
        if value.op == "const":
            return f"bc({number(value.number)})"
        if value.op == "count":
            return f"bc({number(float(dim_size(value.data, self.layout.sizes)))})"
        if loop_invariant(value):
            offset = self.layout.vector(value)
            if value.shape:
                return f"ld({self.vectors} + {offset} + u)"
            return f"bc({self.vectors}[{offset}])"
        return None

    def _scalar(self, buffer: Buffer) -> str:
        """C text of the place of a scalar of this phase, in row r."""
        return f"(r - r0) * {self.scalars} + {buffer.index}"

    def _load(self, value: Node) -> str:
        """C text of a value that this part does not compute, as a vector at row r, unit u."""
        constant = self._constant(value)
        if constant is not None:
            return constant
        buffer = self.phase.buffers[value]
        if buffer.where == "scalar":
            return f"bc(sc[{self._scalar(buffer)}])"
        place = self.place(buffer, value)
        if not value.shape:
            return f"bc(*({place.at('r')}))"
        if place.width is not None and place.width % self.layout.lanes:
            return f"ldn({place.at('r')}, u, {place.width})"
        return f"ld({place.at('r')} + u)"

    def _store(self, buffer: Buffer, value: Node, text: str) -> str:
        place = self.place(buffer, value)
        if place.width is not None and place.width % self.layout.lanes:
            return f"stn({place.at('r')}, u, {place.width}, {text});"
        return f"st({place.at('r')} + u, {text});"

    def _straight(self, part: Part, columns: dict[Node, str]) -> list[str]:
        """C lines for one vector of units in one row: loads, one line per node, stores."""
        names: dict[Node, str] = {}
        lines: list[str] = []

        def use(value: Node) -> str:
            if value not in names:
                names[value] = f"x{len(names)}"
                lines.append(f"const V {names[value]} = {self._load(value)};")
                lines.extend(self.prefetches(value, self.phase.buffers.get(value), stored=False))
            return names[value]

        merged = {
            term
            for bundle in part.bundles
            for acc in bundle.accs
            for term in acc.terms
            if term is not acc.into
        }
        for value in part.nodes:
            if value in merged:
                continue
            if value.op == "lin":
                weighted = [
                    (coef, arg)
                    for coef, arg in zip(value.coefs, value.args, strict=True)
                    if arg not in merged or value not in columns
                ]
                terms = [use(arg) for _, arg in weighted]
                text = spell_sum(tuple(coef for coef, _ in weighted), value.bias, terms)
                if value in columns:
                    text = f"{columns[value]} + {text}" if text != "bc((T)0.0)" else columns[value]
            elif value.op == "matmul":
                text = columns[value]
            elif value.over_units:
                text = spell_over_units(
                    value, self._address_of_units(value.args[0]), self.layout.size
                )
            else:
                text = spell(value, [use(arg) for arg in value.args])
            names[value] = f"x{len(names)}"
            lines.append(f"const V {names[value]} = {text};")
        stores = [
            self._store(buffer, value, use(value))
            for value, buffer in part.writes
            if not self.layout.needless(buffer)
        ]
        prefetches = [
            line for v, buffer in part.writes for line in self.prefetches(v, buffer, stored=True)
        ]
        return [*lines, *stores, *prefetches]

    def _part(self, part: Part) -> list[str]:
        gate_block = self.layout.gate_block(part.gate_block)
        if not part.bundles:
            lines = self._straight(part, {})
            if not lines:
                return []
            body = "\n            ".join(lines)
            return [
                "for (long r = r0; r < r1; r++)",
                f"    for (long v = lo[{gate_block}]; v < hi[{gate_block}]; v++) {{",
                "        long u = v * VL; (void)u;",
                f"            {body}",
                "    }",
                *self.computed,
            ]
        panels = [self.panels[bundle] for bundle in part.bundles]
        ones = self._ones(part) if self.direct is None else {}
        stored = self._only_stored(part) if self.direct is None else None
        if stored is not None:
            return self._blocks(
                panels[0], gate_block, self._product_into(panels[0], stored, ones), ones=ones
            )
        width = panels[0].width
        total = sum(p.accs for p in panels) * width
        columns: dict[Node, str] = {}
        calls: list[str] = []
        first = 0
        for panel in panels:
            for index, acc in enumerate(panel.bundle.accs):
                columns[acc.into] = f"ld(row + ({first} + {index} * nv + j) * VL)"
            if self.direct is None:
                calls.extend(product_code(panel, first, self._operand, self.k_block, ones=ones))
            else:
                size = self.layout.size(part.gate_block)
                calls.extend(direct_code(panel, first, size, self._operand, self.direct))
            first += panel.accs * width
        body = "\n                ".join(self._straight(part, columns))
        call = "\n        ".join(calls)
        lines = [
            call,
            *self.multiplied,
            "for (long r = rb; r < rb + m; r++) {",
            "    const T *row = buf + (r - rb) * LDB;",
            "    for (long j = 0; j < nv; j++) {",
            "    long u = (v + j) * VL; (void)u;",
            f"    {body}",
            "    }",
            "}",
            *self.computed,
        ]
        buffer = [
            f"    enum {{ LDB = {total} * VL }};",
            f"    T buf[{self.row_block} * LDB] __attribute__((aligned(64)));",
        ]
        return self._blocks(panels[0], gate_block, lines, buffer, ones)

    def _blocks(
        self,
        panel: Panels,
        gate_block: int,
        lines: list[str],
        declared: Sequence[str] = (),
        ones: Mapping[Node, Ones] = MappingProxyType({}),
    ) -> list[str]:
        """Lines that are run for every block of rows and every panel; ones are looked for once per
        block."""
        rows, vectors, width = self.row_block, panel.vectors, panel.width
        lists = [line for operand_ones in ones.values() for line in operand_ones.declared()]
        finite = "const int finite = all_finite(c->flags, c->workers);"
        sought = [
            operand_ones.sought(*self._operand(value)) for value, operand_ones in ones.items()
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

    def _only_stored(self, part: Part) -> RowAddress | None:
        """Address to which a part's only product is stored, if nothing else is done with it."""
        accs = [acc for bundle in part.bundles for acc in bundle.accs]
        if len(accs) > 1 or len(part.writes) != 1:
            return None
        (acc,), ((value, buffer),) = accs, part.writes
        if acc.into is not value or {*part.nodes} != {value, *acc.terms}:
            return None
        if value.op != "matmul" and (value.bias or {*value.args} != {*acc.terms}):
            return None
        place = self.place(buffer, value)
        return place if place.width is None or place.width % self.layout.lanes == 0 else None

    def _ones(self, part: Part) -> dict[Node, Ones]:
        """Operands of a part that are scanned for ones."""
        operands = [
            value
            for bundle in part.bundles
            for value in self.gathering.operands(part.gate_block, bundle)
        ]
        return {
            value: Ones(number, self.gathering.size(value), self.row_block)
            for number, value in enumerate(dict.fromkeys(operands))
        }

    def _product_into(
        self, panel: Panels, place: RowAddress, ones: Mapping[Node, Ones]
    ) -> list[str]:
        """C lines whose tiles store a product directly to its address, without a buffer."""
        target = f"({place.at('rb')}) + v * VL"
        lines = product_code(panel, 0, self._operand, self.k_block, target, place.stride, ones)
        return [*lines, *self.multiplied]

    def _operand(self, value: Node) -> tuple[str, str]:
        place = self.place(self.phase.buffers[value], value)
        return f"({place.at('rb')})", place.stride

    def _address_of_units(self, value: Node) -> str:
        """C text of the address of all units of a value in row r."""
        if loop_invariant(value):
            return f"({self.vectors} + {self.layout.vector(value)})"
        buffer = self.phase.buffers[value]
        if buffer.where == "scalar":
            return f"(sc + {self._scalar(buffer)})"
        return f"({self.place(buffer, value).at('r')})"

    def _reduce(self, value: Node, mean: str) -> str:
        """A reduction over the arguments' units, which lie in memory."""
        reads = [
            (self._address_of_units(arg), self.layout.size(arg.shape[0][0])) for arg in value.args
        ]
        return spell_reduce(value.op, reads, mean)

    def _scalars(self, segment: Segment) -> list[str]:
        """Reductions and arithmetic on scalars, in every row."""
        if not segment.scalars and not segment.scalar_writes:
            return []
        head = ["for (long r = r0; r < r1; r++) {", "    const long u = 0; (void)u;"]
        computed = ["    " + line for line in self._scalar_values(segment)]
        stored = ["    if (lead) " + line for line in self._scalar_stores(segment)]
        return [*head, *computed, *stored, "}", *self.computed]

    def _scalar_values(self, segment: Segment) -> list[str]:
        lines: list[str] = []
        means: dict[tuple[Node, ...], str] = {}
        for value in segment.scalars:
            target = f"sc[{self._scalar(self.phase.buffers[value])}]"
            if OPS[value.op].kind == "reduce":
                reduced = self._reduce(value, means.get(value.args, ""))
                lines.append(f"{{ {reduced} {target} = s; }}")
                if value.op == "mean":
                    means[value.args] = target
                continue
            args = [self._load(arg) for arg in value.args]
            if value.op == "lin":
                text = spell_sum(value.coefs, value.bias, args)
            else:
                text = spell(value, args)
            lines.append(f"{{ const V x = {text}; {target} = LANE(x, 0); }}")
        return lines

    def _scalar_stores(self, segment: Segment) -> list[str]:
        lines: list[str] = []
        for value, buffer in segment.scalar_writes:
            if not self.layout.needless(buffer):
                target = f"*({self.place(buffer, value).at('r')})"
                lines.append(f"{{ const V x = {self._load(value)}; {target} = LANE(x, 0); }}")
        return lines

    def segment(self, name: str, segment: Segment) -> str:
        """The C function of one segment."""
        self.bases = {}
        body = self._scalars(segment)
        for part in segment.parts:
            body.extend(self._part(part))
        bases = [f"    T *const {base} = (T *)({text});" for base, text in self.bases.items()]
        inner = "\n".join("    " + line for line in body)
        unused = (
            "    (void)c; (void)t; (void)t0; (void)lo; (void)hi; (void)sc; (void)lead; (void)done;"
        )
        declared = "\n".join([unused, *bases])
        return f"NOINLINE void {name}({PARAMETERS}) {{\n{declared}\n{inner}\n}}"
