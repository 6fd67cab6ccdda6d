"""The whole translation unit of one program: context, segments, drivers. Pure: same program, same
text."""

from __future__ import annotations

import re
from functools import cached_property

from elman.engines.c.clock import Clock
from elman.engines.c.context import Arity
from elman.engines.c.isa import Isa
from elman.engines.c.layout import CLayout, product_parts
from elman.engines.c.places import RowAddress
from elman.engines.c.products import plan_panels
from elman.engines.c.shared import file, head, runtime, tile_head, tiles
from elman.engines.c.sums import SumWriter
from elman.engines.c.sweeps import SweepWriter
from elman.engines.c.weights import WeightArrays
from elman.errors import VerifyError
from elman.ir.graph import Node
from elman.plan.program import Program, Sweep
from elman.plan.schedule import Blocks

_TILES = re.compile(r"\b(?:rows|across|picked)[1-9]\b")  # products that a text calls


class Emitter:
    """Spells one program for one instruction set; with a clock in it if it is to be ``timed``."""

    def __init__(
        self, program: Program, isa: Isa, blocks: Blocks | None = None, *, timed: bool = False
    ) -> None:
        self.program, self.isa, self.blocks = program, isa, blocks or Blocks()
        self.clock = Clock(timed)
        self.layout = CLayout(program, isa)
        self._sweeps: list[SweepWriter] = []
        self.arrays = WeightArrays(self.layout, program.pair)
        self.shape = Arity(
            len(self.layout.input_widths), len(self.layout.state_widths), len(self.arrays.names)
        )
        for leaf in (*program.pair.step.walk(),):
            if leaf.shape and len(leaf.shape) == 1:
                self.layout.gate_block(leaf.shape[0][0])

    def text(self) -> str:
        """The C text."""
        body = self._body  # the head lists the gate blocks that it uses
        return f"{self._head()}\n\n{body}\n"

    def linked_texts(self) -> tuple[str, ...]:
        """Translation units that the text is linked with."""
        isa, dtype = self.isa, self.program.spec.dtype
        used = sorted(set(_TILES.findall(self._body)))
        return (runtime(isa, dtype), *tiles(isa, dtype, used))

    @property
    def joined(self) -> frozenset[int | str]:
        """The inputs, and ``"dy"``, of which a batched phase reads the rows of several steps."""
        assert self._body
        writers = [writer for sweep in self._sweeps for writer in sweep.writers]
        return frozenset().union(*(writer.joined for writer in writers))

    @cached_property
    def _body(self) -> str:
        """Workspaces, segments, drivers, entries."""
        texts = [self._direction("forward", self._sweep("fwd", self.program.forward))]
        if self.program.backward is None:
            direct = self._sweep("dir", self.program.forward, direct=True)
            texts.append(self._direction("direct", direct))
        else:
            backward = self._sweep("bwd", self.program.backward)
            texts.append(self._direction("backward", backward, self._sums(backward)))
        arenas, linked_texts, entries = zip(*texts, strict=True)
        return "\n\n".join([*arenas, *linked_texts, *entries])

    def _direction(
        self, name: str, sweep: SweepWriter, sums: SumWriter | None = None
    ) -> tuple[str, str, str]:
        """Workspace, functions and entry of one direction.

        Raises:
            VerifyError: the workspace is not what the text needs, once all of it is spelled.
        """
        segments = sweep.segments()
        run = self._forward(name, sweep) if sums is None else self._backward(sweep, sums)
        linked_texts = "\n\n".join([*segments, run])
        regions = self._regions(sweep, sums)  # its places are given where they are first named
        texts = self._arena(name, regions), linked_texts, self._entry(name)
        if regions != self._regions(sweep, sums):
            raise VerifyError(f"the workspace of {name} was laid out before all of it was known")
        return texts

    def _sweep(self, name: str, sweep: Sweep, *, direct: bool = False) -> SweepWriter:
        writer = SweepWriter(
            name, sweep, self.layout, self.arrays, self.blocks, self.clock, direct=direct
        )
        self._sweeps.append(writer)
        return writer

    def _head(self) -> str:
        spec = self.program.spec
        lines = [head(self.isa, spec.dtype), tile_head(), self.shape.text()]
        widths = self.layout.state_widths
        lines.append(f"enum {{ STATES = {len(widths)} }};")
        widths_text = ", ".join(map(str, widths)) or "0"
        lines.append(f"UNUSED static const long state_width[] = {{{widths_text}}};")
        lines.append(file("packed.h"))
        grains = self._granules()
        gate_blocks = self.layout.gate_blocks
        counts = [self.layout.padded(gate_block) // self.layout.lanes for gate_block in gate_blocks]
        lines.append(f"enum {{ GATE_BLOCKS = {max(1, len(gate_blocks))} }};")
        lines.append(
            "static void ranges(const Worker *w, long *lo, long *hi, long *zero, long *full) {\n"
            f"    static const long count[] = {{{', '.join(map(str, counts or [0]))}}};\n"
            f"    static const long grain[] = {{{', '.join(map(str, grains or [1]))}}};\n"
            "    for (int a = 0; a < GATE_BLOCKS; a++) {\n"
            "        long grains = (count[a] + grain[a] - 1) / grain[a];\n"
            "        lo[a] = share(grains, w->id, w->workers) * grain[a];\n"
            "        hi[a] = share(grains, w->id + 1, w->workers) * grain[a];\n"
            "        if (lo[a] > count[a]) lo[a] = count[a];\n"
            "        if (hi[a] > count[a]) hi[a] = count[a];\n"
            "        zero[a] = 0; full[a] = count[a];\n"
            "    }\n"
            "}"
        )
        return "\n".join([*lines, *self.clock.head()])

    def _granules(self) -> list[int]:
        """Per gate block, the widest panel of any product: unit ranges are whole panels
        everywhere."""
        sweeps = [self.program.forward, self.program.backward]
        phases = [phase for sweep in sweeps if sweep is not None for phase in sweep.phases]
        panels = plan_panels(self.layout, product_parts(phases)).values()
        return [
            max([p.width for p in panels if p.gate_block == gate_block], default=1)
            for gate_block in self.layout.gate_blocks
        ]

    def _regions(self, sweep: SweepWriter, sums: SumWriter | None) -> list[tuple[str, str]]:
        """The parts of a direction's workspace, and their numbers of elements as C text."""
        chunk_row = sweep.chunk[1]
        batched = max(sweep.writers[0].scratch_row, sweep.writers[2].scratch_row)
        scalars = max(writer.scalars for writer in sweep.writers)
        packs = 0 if sweep.direct else sum(p.elements for p in sweep.panels.values())
        regions = [
            ("vec", str(self.layout.vector_area + self.layout.lanes)),
            ("mat", str(sweep.code.matrix_area)),
            ("pack", str(packs)),
            ("scratch", f"max2(2 * c->B * {sweep.writers[1].scratch_row}, rows * {batched})"),
            ("chunk_rows", f"rows * {chunk_row}"),
            *self._gathered(sweep),
            ("scalars", f"rows * {scalars} + 64 / sizeof(T)"),  # of each worker
        ]
        if sums is not None:
            regions += [
                ("carry", f"c->B * {2 * self.layout.carry_row + self.layout.summed_row}"),
                ("right", f"rows * {sums.right_row}"),
                *sums.regions,
            ]
        return regions

    def _arena(self, name: str, regions: list[tuple[str, str]]) -> str:
        """C function that lays out the workspace; without an arena it only counts bytes."""
        lines = [
            f"static void {name}_arena(C *c) {{",
            "    long n = c->chunk < c->T ? c->chunk : c->T, rows = n * c->B;",
            "    char *p = c->arena;",
        ]
        for region, count in regions:
            if region == "scalars":
                lines.append(f"    c->scalars_size = {count};")
                count = "c->workers * c->scalars_size"
            lines.append(f"    c->{region} = (T *)p; p += bytes_of({count});")
        lines.append("    c->flags = (Flag *)p; p += c->workers * sizeof(Flag);")
        lines.append("    c->bytes = p - c->arena;")
        lines.append("}")
        return "\n".join(lines)

    def _gathered(self, sweep: SweepWriter) -> list[tuple[str, str]]:
        """Workspace for the states before the rows of a chunk, where they are not stored in that
        order."""
        widths = self.layout.state_widths if sweep.gathers else ()
        always = self.layout.held if sweep.gathers_held else ()
        return [
            (f"prev[{i}]", f"rows * {width}" if i in always else f"c->rows ? rows * {width} : 0")
            for i, width in enumerate(widths)
        ]

    def _copy_rows(self, target: str, source: str, width: int) -> str:
        return f"memcpy({target}, {source}, sizeof(T) * c->B * {width});"

    def _worker(self, name: str, body: list[str]) -> str:
        head = [
            f"static void {name}_run(C *c, Worker *w) {{",
            "    long lo[GATE_BLOCKS], hi[GATE_BLOCKS], zero[GATE_BLOCKS], full[GATE_BLOCKS];",
            "    ranges(w, lo, hi, zero, full);",
            "    T *sc = c->scalars + w->id * c->scalars_size;",
            "    (void)sc;",
            *("    " + line for line in self.clock.start()),
        ]
        return "\n".join([*head, *("    " + line for line in body), "}"])

    def _forward(self, name: str, sweep: SweepWriter) -> str:
        first = [
            self._copy_rows(f"c->st[{i}]", f"c->h0[{i}]", width)
            for i, width in enumerate(self.layout.state_widths)
        ]
        return self._worker(
            name,
            [
                "if (!w->id) {",
                *("    " + line for line in first),
                "}",
                *sweep.setup(),
                "for (long t0 = 0; t0 < c->T; t0 += c->chunk) {",
                "    long n = c->T - t0 < c->chunk ? c->T - t0 : c->chunk;",
                "    if (c->awaits) wait_for(c->awaits, t0 + n);",
                *("    " + line for line in sweep.batched("before")),
                *("    " + line for line in sweep.steps("for (long t = t0; t < t0 + n; t++)")),
                *("    " + line for line in sweep.gathered()),
                *("    " + line for line in sweep.batched("after")),
                "    tell((Head *)c, w, t0 + n);",
                "}",
                "if (!w->id) last_states(c);",
            ],
        )

    def _sums(self, sweep: SweepWriter) -> SumWriter:
        writer = sweep.writers[2]

        def place(value: Node) -> RowAddress:
            return writer.place(sweep.sweep.summed(value), value)

        return SumWriter(self.program, self.layout, sweep.code, self.arrays, place, sweep.gathering)

    def _finish(self, sweep: SweepWriter) -> list[str]:
        """Gradients of the wanted weights from the finished sums."""
        pair, wants = self.program.pair, self.program.spec.wants
        sums = self._sums(sweep)
        lines: list[str] = []
        gradients = [
            (leaf, d)
            for leaf, d in zip(pair.step.weights, pair.d_weights, strict=True)
            if leaf.name in wants
        ]
        roots = [d for leaf, d in gradients if d is not None and leaf not in sums.direct]
        lines.extend(sweep.code.compute(list(dict.fromkeys(roots))))
        for leaf, d in gradients:
            if leaf not in sums.direct:
                lines.extend(sweep.code.gradient(leaf, d))
        return lines

    def _carried(self) -> tuple[list[str], list[str]]:
        """C lines that read the cotangents of the last states, and that write those of the initial
        states."""
        layout = self.layout
        start: list[str] = []
        end: list[str] = []
        for index, column in enumerate(layout.states):
            (first, row), (final, _) = layout.carried(index, "t"), layout.carried(index, "1")
            width = layout.state_widths[column.array]
            d_last = f"c->dlast[{column.array}]"
            target = f"{first} + b * {row} + {layout.carry[index]}"
            source = f"{d_last} ? {d_last} + b * {width} + {column.offset} : 0"
            if self.program.pair.step.states[index].shape:
                line = f"copy_in({target}, {source}, {column.width});"
            else:  # scalars lie side by side: a whole vector would reach into the next row
                line = f"*({target}) = {d_last} ? *({d_last} + b) : 0;"
            start += [
                "for (long t = c->T - 1, b = 0; t >= 0 && b < c->B; t--)",
                f"    for (; b < size_at(c, t); b++) {line}",
            ]
            end.append(
                f"if (c->dst[{column.array}]) for (long b = 0; b < c->B; b++)"
                f" memcpy(c->dst[{column.array}] + b * {width} + {column.offset},"
                f" {final} + b * {row} + {layout.carry[index]},"
                f" sizeof(T) * {column.width});"
            )
        return start, end

    def _backward(self, sweep: SweepWriter, sums: SumWriter) -> str:
        writer = sweep.writers[2]
        writer.bases = {}
        pack, products, vectors = sums.pack(), sums.products(self.blocks.k), sums.vectors()
        bases = [
            f"    T *const {base} = (T *)({text}); (void){base};"
            for base, text in writer.bases.items()
        ]
        summed_up = self.clock.mark("weight gradients")
        start, end = self._carried()
        summed = [
            "{",
            "    UNUSED long t = t0, rows = first_row(c, t0 + n) - first_row(c, t0);",
            "    int first = t0 + n == c->T; (void)first;",
            *bases,
            *("    " + line for line in pack),
            *("    " + line for line in vectors),
            *([*summed_up, "    barrier(w);"] if pack else []),
            *("    " + line for line in products),
            *summed_up,
            "}",
            "barrier(w);",
        ]
        return self._worker(
            "backward",
            [
                "if (!w->id) {",
                *("    " + line for line in start),
                "}",
                *sweep.setup(),
                "for (long t1 = c->T; t1 > 0; t1 -= c->chunk) {",
                "    long t0 = t1 > c->chunk ? t1 - c->chunk : 0, n = t1 - t0;",
                "    if (c->awaits) wait_for(c->awaits, c->T - t0);",
                *("    " + line for line in sweep.gathered()),
                *("    " + line for line in sweep.batched("before")),
                *("    " + line for line in sweep.steps("for (long t = t0 + n - 1; t >= t0; t--)")),
                *("    " + line for line in sweep.batched("after")),
                "    tell((Head *)c, w, c->T - t0);",
                *("    " + line for line in summed),
                "}",
                "if (!w->id) {",
                *("    " + line for line in end),
                *("    " + line for line in self._finish(sweep)),
                "}",
                *summed_up,
            ],
        )

    def _entry(self, name: str) -> str:
        """Exported C functions: the call by itself, and prepare and run for concurrent launches;
        without an arena the call returns the workspace's size (bytes)."""
        return f"""__attribute__((visibility("default"))) void elman_{name}_prepare(void *c) {{
    {name}_arena(c);
}}
__attribute__((visibility("default"))) void elman_{name}_run(void *c, Worker *w) {{
    {name}_run(c, w);
}}
__attribute__((visibility("default"))) long elman_{name}(C *c) {{
    if (!c->arena) {{
        {name}_arena(c);
        return c->bytes;
    }}
    Task task = {{elman_{name}_prepare, elman_{name}_run, (Head *)c}};
    return run_tasks(&task, 1, c->workers);
}}"""
