"""One segment of one phase as a C function: scalars, products, straight-line code, stores."""

from __future__ import annotations

from dataclasses import dataclass

from elman.engines.c.clock import Clock
from elman.engines.c.layout import CLayout, product_parts
from elman.engines.c.ops import number, spell, spell_over_units, spell_reduce, spell_sum
from elman.engines.c.products import Panels, Weights, direct_code, product_code
from elman.ir.graph import Node
from elman.ir.ops import OPS
from elman.ir.pair import loop_invariant
from elman.ir.types import dim_size
from elman.plan.program import Buffer, Bundle, Part, Phase, Segment

PARAMETERS = (
    "const C *c, long t, long t0, long r0, long r1, const long *lo, const long *hi, T *sc, int lead"
)


@dataclass(frozen=True)
class RowAddress:
    """A column of row-addressed memory: C text of base and row stride, and what must be
    declared."""

    base: str
    stride: str
    offset: int
    width: int | None  # None: padded to whole vectors

    def at(self, row: str) -> str:
        """C text of the column's address in a row."""
        offset = f" + {self.offset}" if self.offset else ""
        return f"{self.base} + {row} * {self.stride}{offset}"


class PhaseWriter:
    """Spells the segments of one phase."""

    vectors = "c->vec"  # C text of where loop-invariant vectors and scalars lie

    def __init__(
        self,
        layout: CLayout,
        phase: Phase,
        chunk: tuple[list[int], int],
        panels: dict[Bundle, Panels],
        *,
        loop: bool,
        row_block: int,
        k_block: int,
        direct: Weights | None = None,
        clock: Clock,
        label: str,
    ) -> None:
        """``direct`` tells where weights lie, for products that do not use the packed panels."""
        self.layout, self.phase, self.loop = layout, phase, loop
        self.chunk, self.panels = chunk, panels
        self.row_block, self.k_block, self.direct = row_block, k_block, direct
        self.multiplied = clock.mark(f"{label}: products") if product_parts([phase]) else []
        self.computed = clock.mark(f"{label}: pointwise") if phase.segments else []
        self.scratch, self.scratch_row = layout.scratch(phase)
        self.scalars = sum(1 for buffer in phase.buffers.values() if buffer.where == "scalar")
        self.bases: dict[str, str] = {}
        self.joined: set[int | str] = set()  # inputs, and "dy", of which rows of T·B are read
        self.gathers_held = False  # whether rows of T·B read states that have one row per sample

    def place(self, buffer: Buffer, value: Node) -> RowAddress:
        """The column of a buffer; registers the declaration of its base."""
        where, index = buffer.where, buffer.index
        layout = self.layout
        if where in ("input", "state", "next", "output", "d_output", "d_input"):
            column = layout.column(buffer)
            width = column.width if value.shape else None
            array = column.array
            if where == "input":
                if not self.loop:
                    self.joined.add(array)
                self.bases[f"in{array}"] = (
                    f"c->in[{array}] + in_row(c, t, c->in_t[{array}], c->in_l[{array}])"
                )
                return RowAddress(f"in{array}", f"c->in_l[{array}]", column.offset, width)
            if where == "d_output":
                if not self.loop:
                    self.joined.add("dy")
                self.bases["dy"] = "c->dy + in_row(c, t, c->dy_t, c->dy_l)"
                return RowAddress("dy", "c->dy_l", column.offset, width)
            if where == "output":
                row = layout.output_width
                self.bases["out"] = f"c->out + first_row(c, t) * {row}"
                return RowAddress("out", str(row), column.offset, width)
            if where == "d_input":
                row = layout.input_widths[array]
                self.bases[f"din{array}"] = f"c->din[{array}] + first_row(c, t) * {row}"
                return RowAddress(f"din{array}", str(row), column.offset, width)
            row = layout.state_widths[array]
            step, name = ("t", "st") if where == "state" else ("t + 1", "nx")
            text = f"c->st[{array}] + state_row(c, {step}, c->ring[{array}]) * {row}"
            if where == "state" and not self.loop and array in layout.held:
                self.gathers_held, text = True, f"c->prev[{array}]"
            elif where == "state" and not self.loop:
                text = f"c->rows ? c->prev[{array}] : {text}"
            self.bases[f"{name}{array}"] = text
            return RowAddress(f"{name}{array}", str(row), column.offset, width)
        if where in ("carry", "d_state"):
            name = "cs" if layout.summed[index] else "ca" if where == "carry" else "cn"
            self.bases[name], row = layout.carried(index, "t" if where == "carry" else "t + 1")
            return RowAddress(name, str(row), layout.carry[index], None)
        if where == "tape":
            self.bases["tape"] = f"c->tape + first_row(c, t) * {layout.tape_row}"
            return RowAddress("tape", str(layout.tape_row), layout.tape[index], None)
        if where == "chunk":
            offsets, row = self.chunk
            self.bases["ch"] = f"c->chunk_rows + (first_row(c, t) - first_row(c, t0)) * {row}"
            return RowAddress("ch", str(row), offsets[index], None)
        if where == "scratch":
            step = f"(t & 1) * c->B * {self.scratch_row}" if self.loop else "0"
            self.bases["sr"] = f"c->scratch + {step}"
            return RowAddress("sr", str(self.scratch_row), self.scratch[index], None)
        raise AssertionError(f"a {where} has no column")

    def _constant(self, value: Node) -> str | None:
        """C text of what is the same in every row: numbers, loop-invariant scalars and vectors."""
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
        """Loads, one line per node, stores: the code of one vector of units in one row."""
        names: dict[Node, str] = {}
        lines: list[str] = []

        def use(value: Node) -> str:
            if value not in names:
                names[value] = f"x{len(names)}"
                lines.append(f"const V {names[value]} = {self._load(value)};")
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
                text = spell_over_units(value, self._whole(value.args[0]), self.layout.size)
            else:
                text = spell(value, [use(arg) for arg in value.args])
            names[value] = f"x{len(names)}"
            lines.append(f"const V {names[value]} = {text};")
        stores = [
            self._store(buffer, value, use(value))
            for value, buffer in part.writes
            if not self.layout.needless(buffer)
        ]
        return lines + stores

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
        width = panels[0].width
        total = sum(p.accs for p in panels) * width
        vectors = panels[0].vectors
        columns: dict[Node, str] = {}
        calls: list[str] = []
        first = 0
        for panel in panels:
            for index, acc in enumerate(panel.bundle.accs):
                columns[acc.into] = f"ld(row + ({first} + {index} * nv + j) * VL)"
            if self.direct is None:
                calls.extend(product_code(panel, first, self._operand, self.k_block))
            else:
                size = self.layout.size(part.gate_block)
                calls.extend(direct_code(panel, first, size, self._operand, self.direct))
            first += panel.accs * width
        body = "\n                ".join(self._straight(part, columns))
        call = "\n            ".join(calls)
        return [
            "{",
            f"    enum {{ LDB = {total} * VL }};",
            f"    T buf[{self.row_block} * LDB] __attribute__((aligned(64)));",
            f"    for (long rb = r0; rb < r1; rb += {self.row_block}) {{",
            f"        long m = r1 - rb < {self.row_block} ? r1 - rb : {self.row_block};",
            f"        for (long v = lo[{gate_block}]; v < hi[{gate_block}]; v += {width}) {{",
            f"            long nv = {vectors} - v < {width} ? {vectors} - v : {width};",
            f"            {call}",
            *self.multiplied,
            "            for (long r = rb; r < rb + m; r++) {",
            "                const T *row = buf + (r - rb) * LDB;",
            "                for (long j = 0; j < nv; j++) {",
            "                long u = (v + j) * VL; (void)u;",
            f"                {body}",
            "                }",
            "            }",
            *self.computed,
            "        }",
            "    }",
            "}",
        ]

    def _operand(self, value: Node) -> tuple[str, str]:
        place = self.place(self.phase.buffers[value], value)
        return f"({place.at('rb')})", place.stride

    def _whole(self, value: Node) -> str:
        """C text of the address of all units of a value in row r."""
        if loop_invariant(value):
            return f"({self.vectors} + {self.layout.vector(value)})"
        buffer = self.phase.buffers[value]
        if buffer.where == "scalar":
            return f"(sc + {self._scalar(buffer)})"
        return f"({self.place(buffer, value).at('r')})"

    def _reduce(self, value: Node, mean: str) -> str:
        """A reduction over the arguments' units, which lie in memory."""
        reads = [(self._whole(arg), self.layout.size(arg.shape[0][0])) for arg in value.args]
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
        unused = "    (void)c; (void)t; (void)t0; (void)lo; (void)hi; (void)sc; (void)lead;"
        declared = "\n".join([unused, *bases])
        return f"NOINLINE void {name}({PARAMETERS}) {{\n{declared}\n{inner}\n}}"
