"""One direction in time as C: its segments, its packed weights, and the calls that drive them."""

from __future__ import annotations

from collections.abc import Sequence

from elman.engines.c.compilation.isa import Isa
from elman.engines.c.matrices.matrix_states import MatrixStates
from elman.engines.c.products.gathering import gathered_operands
from elman.engines.c.products.panels import Panels, pack_code, plan_panels, tiles_of
from elman.engines.c.products.sums import SumPrinter
from elman.engines.c.spelling.clock import Clock
from elman.engines.c.spelling.invariants import InvariantPrinter
from elman.engines.c.spelling.rounding import RoundedMemory
from elman.engines.c.spelling.row_prefetches import RowPrefetches, distant_columns, plan_prefetches
from elman.engines.c.spelling.values import accesses, in_groups, in_lines
from elman.engines.c.text.printer import PhasePrinter, ProductStyle
from elman.lowered.layout import Layout
from elman.lowered.types import Direction, Phase, Product, Space, Stage
from elman.plan.schedule import Blocks

_NAMES = {"forward": "fwd", "direct": "dir", "backward": "bwd"}
_WHERE = ("before the loop", "steps", "after the loop")


class DirectionPrinter:
    """Prints one direction: its workspace, functions and entry.

    Args:
        name: of its entry: ``forward``, ``backward``, or ``direct``, a forward whose products read
            the weights as they lie; so do all if nothing is ``tiled``.
        direction, layout: what is printed.
        isa, blocks: the target.
        clock: of the translation unit.
    """

    def __init__(
        self,
        name: str,
        direction: Direction,
        layout: Layout,
        isa: Isa,
        blocks: Blocks,
        clock: Clock,
        *,
        tiled: bool,
    ) -> None:
        self.name, self.direction, self.layout, self.clock = name, direction, layout, clock
        self.blocks = blocks
        self.matrices = MatrixStates(layout, direction)
        self.packed = clock.mark(f"{direction.name}, weights packed")
        self.direct = name == "direct" or not tiled
        self.panels: dict[Product, Panels] = plan_panels(layout, direction.all_phases, isa.pairs)
        self.invariants = InvariantPrinter(layout)
        rounded = direction.parts if isa.pairs and not self.direct else ()
        before = self.matrices.elements()
        self.rounded = RoundedMemory(rounded, blocks, layout.lanes, before)
        dots = ("dots" if tiled else "plain_dots") if self.direct else ""
        dots = f"paired_{dots}" if dots and isa.pairs else dots
        rows = blocks.rows if tiled else 1
        style = ProductStyle(self.panels, blocks, rows, dots, rounded=self.rounded.start)
        self.sums = SumPrinter(layout, direction.sums, isa, blocks, tiled=tiled)
        local, self._ahead = self._local(), self._plan_prefetches()
        phases: list[tuple[Phase, str]] = [*zip(direction.phases, _WHERE, strict=True)]
        if direction.replay is not None:
            phases.append((direction.replay, "steps again"))
        self._phases = [
            PhasePrinter(
                layout,
                phase,
                style,
                clock,
                f"{direction.name}, {label}",
                isa.accumulators,
                local,
                self._ahead,
            )
            for phase, label in phases
        ]
        self.summed = clock.mark("weight gradients") if name == "backward" else []

    def _local(self) -> dict[Space, str]:
        """Offsets in a worker's memory of a step's scratch and a chunk's rows, if it runs all
        phases of one sample before those of the next: they stay in its near cache."""
        if not self.direction.sample_by_sample:
            return {}
        scratch = in_lines(max(phase.scalars for phase in self.direction.all_phases))
        chunk = scratch + in_lines(max(phase.scratch_row for phase in self.direction.all_phases))
        return {Space.SCRATCH: str(scratch), Space.CHUNK: str(chunk)}

    def _plan_prefetches(self) -> dict[int, RowPrefetches]:
        """Prefetches of the parts over matrices, by identity of a part; none unless all phases run
        sample by sample."""
        direction = self.direction
        if not direction.sample_by_sample:
            return {}
        parts = [p for phase in direction.loops for s in phase.segments for p in s.parts if p.axes]
        return plan_prefetches(distant_columns(direction), parts, self.layout.line)

    def tiles(self) -> set[str]:
        """Names of the tiles that are called."""
        panels = set() if self.direct else tiles_of(self.panels.values(), self.blocks)
        return panels | self.sums.tiles()

    def segments(self) -> list[str]:
        """The segments' C functions."""
        return [
            printer.segment(self._function(printer.phase.name, index), segment)
            for printer in self._phases
            for index, segment in enumerate(printer.phase.segments)
        ]

    def _function(self, phase: str, index: int) -> str:
        return f"{_NAMES[self.name]}_{phase}_{index}"

    def arena(self) -> str:
        """C function that lays out the workspace; without an arena it only counts bytes."""
        direction, layout = self.direction, self.layout
        before, _, after = direction.phases
        panels = () if self.direct else self.panels.values()
        packs = sum(p.elements * p.groups for p in panels)
        batched = max(before.scratch_row, after.scratch_row)
        scratch = max(phase.scratch_row for phase in direction.loops)
        chunk_rows = f"rows * {direction.chunk_row}"
        scalars = f"rows * {max(phase.scalars for phase in direction.all_phases)}"
        if local := self._local():
            scratch = batched = 0
            chunk_rows, scalars = "0", f"{local[Space.CHUNK]} + n * {direction.chunk_row}"
        regions = [
            ("vec", str(direction.vectors)),
            ("mat", str(direction.matrices)),
            ("pack", str(packs)),
            ("scratch", f"max2(2 * c->B * {scratch}, rows * {batched})"),
            ("chunk_rows", chunk_rows),
            *self._gathered_regions(),
            ("scalars", "c->workers * c->scalars_size"),
        ]
        if direction.sums or direction.name == "backward":
            carried = f"c->B * {2 * layout.carry_row + layout.summed_row}"
            regions += [("carry", carried), *self.sums.regions]
        lines = [
            f"static void {self.name}_arena(C *c) {{",
            "    long n = c->chunk < c->T ? c->chunk : c->T, rows = n * c->B;",
            "    char *p = c->arena;",
            f"    c->scalars_size = {scalars} + 64 / sizeof(T);",  # of each worker
            *self.matrices.size(),
            *self.rounded.size(),
            *(f"    c->{name} = (T *)p; p += bytes_of({count});" for name, count in regions),
            "    c->flags = (Flag *)p; p += c->workers * sizeof(Flag);",
            "    c->bytes = p - c->arena;",
            "}",
        ]
        return "\n".join(lines)

    def _gathered_regions(self) -> list[tuple[str, str]]:
        """Workspace for the states before the rows of a chunk, where they are not stored in that
        order."""
        widths = self.layout.state_widths if self.direction.gathers else ()
        always = self.layout.held if self.direction.gathers_always else ()
        widths = [0 if i in self.layout.matrices else w for i, w in enumerate(widths)]
        return [
            (f"prev[{i}]", f"rows * {width}" if i in always else f"c->rows ? rows * {width} : 0")
            for i, width in enumerate(widths)
        ]

    def run(self) -> str:
        """C function of one worker's part of a call."""
        body = self._backward() if self.name == "backward" else self._forward()
        lines = [
            f"static void {self.name}_run(C *c, Worker *w) {{",
            "    long lo[GATE_BLOCKS], hi[GATE_BLOCKS], zero[GATE_BLOCKS], full[GATE_BLOCKS];",
            "    ranges(w, lo, hi, zero, full);",
            f"    T *sc = c->scalars + w->id * c->scalars_size{self.matrices.elements()};",
            "    (void)sc;",
            *("    " + line for line in [*self.clock.start(), *body]),
            "}",
        ]
        return "\n".join(lines)

    def _forward(self) -> list[str]:
        first = [
            f"memcpy(c->st[{i}], c->h0[{i}], sizeof(T) * c->B * {width});"
            for i, width in enumerate(self.layout.state_widths)
            if i not in self.layout.matrices
        ]
        chunks = [
            "for (long t0 = 0; t0 < c->T; t0 += c->chunk) {",
            "    long n = c->T - t0 < c->chunk ? c->T - t0 : c->chunk;",
        ]
        return [*_alone(first), *self._chunks(chunks, "t0 + n"), "if (!w->id) last_states(c);"]

    def _backward(self) -> list[str]:
        start, end = self._carried()
        finish = [self.invariants.lines(computed) for computed in self.direction.finish]
        chunks = self._chunks(self._chunks_backwards(), "c->T - t0")
        return [*_alone(start), *chunks, *_alone([*end, *finish]), *self.summed]

    def _chunks(self, head: list[str], done: str) -> list[str]:
        """The setup, then the loop over chunks with a head; ``done``: C text of how many steps are
        over behind one."""
        spelled = {
            Stage.GATHER: self._gathered,
            Stage.BEFORE: lambda: self._batched(0),
            Stage.STEPS: self._steps,
            Stage.AFTER: lambda: self._batched(2),
            Stage.SUMS: self._summed,
        }
        stages = {stage: spelled[stage]() for stage in self.direction.stages}
        sums = stages.pop(Stage.SUMS, [])  # of what the layer below does not wait for
        return [
            *self._setup(),
            *head,
            f"    if (c->awaits) wait_for(c->awaits, {done});",
            *("    " + line for lines in stages.values() for line in lines),
            f"    tell((Head *)c, w, {done});",
            *("    " + line for line in sums),
            "}",
        ]

    def _chunks_backwards(self) -> list[str]:
        """C lines that begin the backward's loop over chunks: those of the forward, where it has
        kept matrices before each."""
        if self.matrices.by_sample:
            return [
                "for (long t1 = c->T, t0; t1 > 0; t1 = t0) {",
                "    t0 = (t1 - 1) / c->chunk * c->chunk;",
                "    long n = t1 - t0;",
            ]
        return [
            "for (long t1 = c->T; t1 > 0; t1 -= c->chunk) {",
            "    long t0 = t1 > c->chunk ? t1 - c->chunk : 0, n = t1 - t0;",
        ]

    def _setup(self) -> list[str]:
        """Weight-rate values by one worker, then packs by all."""
        computed = [self.invariants.lines(value) for value in self.direction.setup]
        lines = [*_alone(computed), *self.packed, "barrier(w);"]
        if self.direct:
            return lines
        for panels in self.panels.values():
            lines += in_groups(panels.groups, pack_code(panels, self.invariants.matrix))
        return [*lines, *self._checked(), *self.packed, "barrier(w);"]

    def _checked(self) -> list[str]:
        """C lines that search matrices of gathered products for infinities."""
        matrices = dict.fromkeys(
            acc[k].matrix
            for panels in self.panels.values()
            for access in gathered_operands(panels.product, panels.units, self.blocks)
            for k in [panels.product.operands.index(access)]
            for acc in panels.product.accs
        )
        if not matrices:
            return []
        few = f"c->T < {self.blocks.gathered_steps}"
        lines = [f"if ({few}) w->flags[w->id].infinite = 1;", "else {"]
        for matrix in matrices:
            base, row = self.invariants.matrix(matrix)
            lines.append(
                f"    look_for_infinities(w, {base}, {row}, {matrix.rows}, {matrix.columns});"
            )
        return [*lines, "}"]

    def _gathered(self) -> list[str]:
        """C lines that gather those states into rows of the chunk, for ragged batches and
        pass-through states."""
        if self.direction.gathers_always:
            return ["gather(c, w, t0, n);", "barrier(w);"]
        return ["if (c->rows) {", "    gather(c, w, t0, n);", "    barrier(w);", "}"]

    def _calls(self, index: int, rows: str, *, sync: str, done: str = "0") -> list[str]:
        """Calls of one phase's segments; ``sync`` is the C condition under which workers wait at a
        barrier, ``done`` how many rows before these have left their scratch."""
        return self._calls_of(self.direction.phases[index], rows, sync=sync, done=done)

    def _calls_of(self, phase: Phase, rows: str, *, sync: str = "0", done: str = "0") -> list[str]:
        lines: list[str] = []
        for number, segment in enumerate(phase.segments):
            if segment.sync and sync != "0":
                lines.append("barrier(w);" if sync == "1" else f"if ({sync}) barrier(w);")
            function = self._function(phase.name, number)
            more = ", more" if self._ahead else ""
            lines.append(f"{function}(c, t, t0, {rows}, sc, lead, {done}{more});")
        return lines

    def _batched(self, index: int) -> list[str]:
        """A batched phase over the rows of the chunk, split by rows or, if they are few, by units.

        All segments of some rows come before those of the next, whose scratch is where theirs was.
        Rows of merged steps lie apart from group to group.
        """
        segments = self.direction.phases[index].segments
        if not segments or self.direction.sample_by_sample:
            return []
        if self.layout.steps > 1:
            return self._batched_by_group(index)
        calls = self._calls(
            index, "b, e, by_rows ? zero : lo, by_rows ? full : hi", sync="!by_rows", done="b - b0"
        )
        by_rows = f"rows >= {self.blocks.batched_rows} * c->shares"
        if any(part.axes for segment in segments for part in segment.parts):
            by_rows = "1"  # a matrix is not shared: its sums belong to one worker
        most = f"by_rows ? {self.blocks.rows} : rows" if len(segments) > 1 else "rows"
        return [
            "{",
            "    long t = t0, rows = first_row(c, t0 + n) - first_row(c, t0);",
            f"    int by_rows = {by_rows}, lead = by_rows || !w->id;",
            "    long s = by_rows ? w->id : 0, step = by_rows ? w->workers : c->shares;",
            "    for (; s < c->shares; s += step) {",
            "        long b0 = by_rows ? share(rows, s, c->shares) : 0;",
            "        long b1 = by_rows ? share(rows, s + 1, c->shares) : rows;",
            f"        const long most = {most};",
            "        for (long b = b0; b < b1; b += most) {",
            "            const long e = b1 - b < most ? b1 : b + most;",
            *("            " + call for call in calls),
            "        }",
            "    }",
            "}",
            "barrier(w);",
        ]

    def _batched_by_group(self, index: int) -> list[str]:
        """A batched phase of merged steps: group by group, each split by rows."""
        return [
            "for (long s = w->id; s < c->shares; s += w->workers)",
            "    for (long t = t0; t < t0 + n; t++) {",
            "        const int lead = 1;",
            "        const long rows = size_at(c, t);",
            "        const long b = share(rows, s, c->shares), e = share(rows, s + 1, c->shares);",
            "        if (b >= e) continue;",
            *("        " + call for call in self._calls(index, "b, e, zero, full", sync="0")),
            "    }",
            "barrier(w);",
        ]

    def _steps(self) -> list[str]:
        """The time loop under each split: one worker, by samples, by units."""
        backward = self.name == "backward"
        order = "long t = t0 + n - 1; t >= t0; t--" if backward else "long t = t0; t < t0 + n; t++"
        loop = f"for ({order})"
        by_units = self._calls(1, "0, size_at(c, t), lo, hi", sync="1")
        by_samples = self._calls(1, "b0, e, zero, full", sync="0")
        if self.matrices.by_sample:
            return [*self._steps_by_sample(loop), "barrier(w);"]
        return [
            "if (c->split == 2) {",
            "    int lead = !w->id;",
            f"    {loop} {{",
            *("        " + call for call in by_units),
            "    }",
            "} else {",
            "    int lead = 1;",
            "    long s = w->id, shares = c->split ? c->shares : 1;",
            "    for (; s < shares; s += w->workers) {",
            "        long b0 = cut(c, s, shares), b1 = cut(c, s + 1, shares);",
            f"        if (b0 < b1) {loop} {{",
            "            long e = size_at(c, t);",
            "            if (e > b1) e = b1;",
            "            if (e <= b0) continue;",
            *("            " + call for call in by_samples),
            "        }",
            "    }",
            "}",
            "barrier(w);",
        ]

    def _steps_by_sample(self, loop: str) -> list[str]:
        """The time loop of one sample after another, whose matrices stay in a near cache."""
        replay, rows = self.direction.replay, "b0, e, zero, full"
        again = [] if replay is None else self._calls_of(replay, rows)
        before, steps, after = (self._calls_of(phase, rows) for phase in self.direction.phases)
        if not self.direction.sample_by_sample:
            before = after = []
        return self.matrices.loops(loop, again, steps, before, after)

    def _summed(self) -> list[str]:
        """The sums for the weights' gradients over the rows of a chunk."""
        sums = self.sums
        pack, mark = sums.pack(), self.summed
        bases = [
            f"T *const {base} = (T *)({text}); (void){base};" for base, text in sums.bases.items()
        ]
        return [
            "{",
            "    UNUSED long t = t0, rows = first_row(c, t0 + n) - first_row(c, t0);",
            "    int first = t0 + n == c->T; (void)first;",
            *("    " + line for line in [*bases, *pack, *sums.vectors_and_scalars()]),
            *([*mark, "    barrier(w);"] if pack else []),
            *("    " + line for line in sums.products()),
            *mark,
            "}",
            "barrier(w);",
        ]

    def _carried(self) -> tuple[list[str], list[str]]:
        """C lines that read the cotangents of the last states, and that write those of the initial
        states."""
        layout = self.layout
        start: list[str] = []
        end: list[str] = []
        for index, column in enumerate(layout.states):
            (first, row), (final, _) = self._carry(index, "t"), self._carry(index, "1")
            width = layout.state_widths[column.array]
            d_last = f"c->dlast[{column.array}]"
            target = f"{first} + b * {row} + {layout.carry[index]}"
            source = f"{d_last} ? {d_last} + b * {width} + {column.offset} : 0"
            if layout.program.pair.step.states[index].shape:
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

    def _carry(self, index: int, step: str) -> tuple[str, int]:
        """C text of the address of a state's cotangent rows read by the backward of a step, and
        their length."""
        layout = self.layout
        if layout.summed[index]:
            return f"c->carry + 2 * c->B * {layout.carry_row}", layout.summed_row
        return f"c->carry + (({step}) & 1) * c->B * {layout.carry_row}", layout.carry_row

    def entry(self) -> str:
        """Exported C functions: the call by itself, and prepare and run for concurrent launches;
        without an arena the call returns the workspace's size (bytes)."""
        name = self.name
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

    @property
    def joined(self) -> frozenset[int | str]:
        """The inputs, and ``"dy"``, of which a batched phase reads the rows of several steps."""
        before, _, after = self.direction.phases
        batched = () if self.direction.sample_by_sample else (before, after)
        columns = [a for phase in batched for s in phase.segments for a in accesses(s)]
        columns += [a for term in self.direction.sums for a in (term.left, term.right) if a]
        inputs = {a.region.array for a in columns if a.region.space is Space.INPUT}
        dy = any(a.region.space is Space.D_OUTPUT for a in columns)
        return frozenset((*inputs, "dy")) if dy else frozenset(inputs)


def _alone(lines: Sequence[str]) -> list[str]:
    """C lines that worker 0 runs."""
    return ["if (!w->id) {", *("    " + line for line in lines), "}"]
