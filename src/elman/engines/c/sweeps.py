"""One direction in time: its segments, its packed weights, and the calls that drive them."""

from __future__ import annotations

from functools import cached_property

from elman.engines.c.clock import Clock
from elman.engines.c.gathering import STEPS, Gathering
from elman.engines.c.layout import CLayout, invariant_reads, product_parts, reads
from elman.engines.c.phases import PhaseWriter, ProductStyle
from elman.engines.c.products import Panels, Weights, pack_code, plan_panels
from elman.engines.c.weights import WeightArrays, WeightCode
from elman.plan.program import Bundle, Sweep
from elman.plan.schedule import Blocks

_WAYS = {"fwd": "forward", "dir": "forward", "bwd": "backward"}
_WHERE = ("before the loop", "steps", "after the loop")
_MANY_ROWS = 16  # a batched phase is split by rows when every worker gets this many, else by units


class SweepWriter:
    """One direction: its phases, packs, workspace and driver."""

    def __init__(
        self,
        name: str,
        sweep: Sweep,
        layout: CLayout,
        arrays: WeightArrays,
        blocks: Blocks,
        clock: Clock,
        *,
        direct: bool = False,
    ) -> None:
        """``direct``: products read the weights as they lie, and nothing is packed; always so if
        there is no tiling."""
        self.name, self.sweep, self.layout = name, sweep, layout
        self.packed = clock.mark(f"{_WAYS[name]}, weights packed")
        self.direct = direct or not layout.tiled
        self.row_block = blocks.rows
        self.chunk = layout.chunk(sweep.chunk)
        self.phases = sweep.phases
        self.panels: dict[Bundle, Panels] = plan_panels(layout, product_parts(self.phases))
        self.code = WeightCode(layout, arrays)
        self.gathering = Gathering(layout)
        dots = "dots" if layout.tiled else "plain_dots"
        weights = Weights(self.code.matrix, dots) if self.direct else None
        rows = blocks.rows if layout.tiled else 1
        products = ProductStyle(self.panels, self.gathering, rows, blocks.k, weights)
        self.writers = [
            PhaseWriter(
                layout,
                phase,
                self.chunk,
                products,
                loop=phase is sweep.step,
                clock=clock,
                label=f"{_WAYS[name]}, {where}",
                later=-1 if name == "bwd" else 1,
                gathers_held=self.gathers_held,
            )
            for phase, where in zip(self.phases, _WHERE, strict=True)
        ]

    def segments(self) -> list[str]:
        """The segments' C functions."""
        return [
            writer.segment(f"{self.name}_{label}_{index}", segment)
            for writer, phase, label in zip(
                self.writers, self.phases, ("before", "step", "after"), strict=True
            )
            for index, segment in enumerate(phase.segments)
        ]

    def setup(self) -> list[str]:
        """Weight-rate values by one worker, then packs by all."""
        matrices = [
            term.args[0]
            for panels in self.panels.values()
            for acc in panels.bundle.accs
            for term in acc.terms
            if term.args[0].op != "weight"
        ]
        roots = list(dict.fromkeys([*invariant_reads(self.phases), *matrices]))
        lines = [
            "if (!w->id) {",
            *("    " + line for line in self.code.compute(roots)),
            "}",
            *self.packed,
            "barrier(w);",
        ]
        if self.direct:
            return lines
        for panels in self.panels.values():
            size = self.layout.size(panels.gate_block)
            lines.extend(pack_code(panels, size, self.code.matrix))
        return [*lines, *self._checked(), *self.packed, "barrier(w);"]

    def _checked(self) -> list[str]:
        """C lines that search matrices of gathered products for infinities."""
        matrices = dict.fromkeys(
            term.args[0]
            for panels in self.panels.values()
            for value in self.gathering.operands(panels.gate_block, panels.bundle)
            for acc in panels.bundle.accs
            for term in acc.terms
            if term.args[1] is value
        )
        if not matrices:
            return []
        lines = [f"if (c->T < {STEPS}) w->flags[w->id].infinite = 1;", "else {"]
        for matrix in matrices:
            base, row = self.code.matrix(matrix)
            rows, units = (self.layout.size(dim) for (dim,) in matrix.shape)
            lines.append(f"    look_for_infinities(w, {base}, {row}, {rows}, {units});")
        return [*lines, "}"]

    @property
    def gathers(self) -> bool:
        """Whether a batched phase reads the states that precede its rows."""
        phases = (self.sweep.before, self.sweep.after)
        return any(buffer.where == "state" for p in phases for buffer in p.buffers.values())

    @cached_property
    def gathers_held(self) -> bool:
        """Whether pass-through states with one row per sample are among them."""
        layout, batched = self.layout, (self.sweep.before, self.sweep.after)
        rows = [p.buffers[v] for p in batched for v in reads(p) if v in p.buffers]
        if self.name == "bwd":
            operands = {v for term in layout.program.sums for v in (term.left, term.right)}
            rows += [self.sweep.summed(value) for value in operands if value is not None]
        return any(
            buffer.where == "state" and layout.column(buffer).array in layout.held
            for buffer in rows
        )

    def gathered(self) -> list[str]:
        """C lines that gather those states into rows of the chunk, for ragged batches and
        pass-through states."""
        if not self.gathers:
            return []
        if self.gathers_held:
            return ["gather(c, w, t0, n);", "barrier(w);"]
        return ["if (c->rows) {", "    gather(c, w, t0, n);", "    barrier(w);", "}"]

    def calls(self, label: str, rows: str, *, sync: str, done: str = "0") -> list[str]:
        """Calls of one phase's segments; ``sync`` is the C condition under which workers wait at a
        barrier, ``done`` how many rows before these have left their scratch."""
        phase = self.phases[("before", "step", "after").index(label)]
        lines: list[str] = []
        for index, segment in enumerate(phase.segments):
            if segment.sync and sync != "0":
                lines.append("barrier(w);" if sync == "1" else f"if ({sync}) barrier(w);")
            lines.append(f"{self.name}_{label}_{index}(c, t, t0, {rows}, sc, lead, {done});")
        return lines

    def batched(self, label: str) -> list[str]:
        """A batched phase over the rows of the chunk, split by rows or, if they are few, by units.

        All segments of some rows come before those of the next, whose scratch is where theirs was.
        """
        phase = self.phases[("before", "step", "after").index(label)]
        if not phase.segments:
            return []
        calls = self.calls(
            label,
            "b, e, by_rows ? zero : lo, by_rows ? full : hi",
            sync="!by_rows",
            done="b - b0",
        )
        most = f"by_rows ? {self.row_block} : rows" if len(phase.segments) > 1 else "rows"
        return [
            "{",
            "    long t = t0, rows = first_row(c, t0 + n) - first_row(c, t0);",
            f"    int by_rows = rows >= {_MANY_ROWS} * c->shares, lead = by_rows || !w->id;",
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

    def steps(self, loop: str) -> list[str]:
        """The time loop under each split: one worker, by samples, by units."""
        return [
            "if (c->split == 2) {",
            "    int lead = !w->id;",
            f"    {loop} {{",
            *(
                "        " + call
                for call in self.calls("step", "0, size_at(c, t), lo, hi", sync="1")
            ),
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
            *("            " + call for call in self.calls("step", "b0, e, zero, full", sync="0")),
            "        }",
            "    }",
            "}",
            "barrier(w);",
        ]
