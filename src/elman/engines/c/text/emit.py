"""The whole translation unit of one program: context, segments, directions. Pure: same program,
same text."""

from __future__ import annotations

from functools import cached_property

from elman.engines.c.calls.context import Arity
from elman.engines.c.compilation.isa import Isa
from elman.engines.c.matrices.passes import row_totals
from elman.engines.c.products.panels import plan_panels
from elman.engines.c.products.tiles import shuffles, strided_products
from elman.engines.c.spelling.clock import Clock
from elman.engines.c.text.directions import DirectionPrinter
from elman.engines.c.text.units import file, head, runtime, tile_head, tiles
from elman.ir.types import GateBlock
from elman.lowered.lower import lower
from elman.lowered.types import Multiply
from elman.plan.program import Program
from elman.plan.schedule import USUAL_BLOCKS, Blocks


class Emitter:
    """Spells one program for one instruction set; with timing code if ``timed``."""

    def __init__(
        self, program: Program, isa: Isa, blocks: Blocks = USUAL_BLOCKS, *, timed: bool = False
    ) -> None:
        self.program, self.isa = program, isa
        self.clock = Clock(timed)
        self.lowered = lower(program, isa.lanes(program.spec.dtype), blocks)
        self.layout = layout = self.lowered.layout
        self.weight_names = layout.weights.names
        self.shape = Arity(
            len(layout.input_widths), len(layout.state_widths), len(self.weight_names)
        )
        forward, backward = self.lowered.forward, self.lowered.backward
        second = ("direct", forward) if backward is None else ("backward", backward)
        self._printers = [
            DirectionPrinter(
                name,
                direction,
                layout,
                isa,
                blocks,
                self.clock,
                tiled="tiling" not in program.spec.options.without,
            )
            for name, direction in (("forward", forward), second)
        ]

    def text(self) -> str:
        """The C text."""
        return f"{self._head()}\n\n{self._body}\n"

    def linked_texts(self) -> tuple[str, ...]:
        """Translation units that the text is linked with."""
        isa, dtype = self.isa, self.program.spec.dtype
        names = sorted(set().union(*(printer.tiles() for printer in self._printers)))
        return (runtime(isa, dtype), *tiles(isa, dtype, names))

    @property
    def joined(self) -> frozenset[int | str]:
        """The inputs, and ``"dy"``, of which a batched phase reads the rows of several steps."""
        return frozenset().union(*(printer.joined for printer in self._printers))

    @cached_property
    def _body(self) -> str:
        """Workspaces, segments, drivers, entries."""
        printers = self._printers
        functions = [text for p in printers for text in (*p.segments(), p.run())]
        return "\n\n".join(
            [*(p.arena() for p in printers), *functions, *(p.entry() for p in printers)]
        )

    def _head(self) -> str:
        lines = [head(self.isa, self.program.spec.dtype), tile_head(), self.shape.text()]
        layout = self.layout
        parts = [part for d in self.lowered.directions for part in d.parts if part.axes]
        if parts:
            lines += [shuffles(layout.lanes), row_totals(layout.lanes), file("matrices.h")]
        if any(isinstance(s, Multiply) for part in parts for s in part.body):
            lines += [strided_products(self.isa), file("multiply.h")]
        # of matrix states only the first and last of each chunk are kept: no row per step
        widths = [0 if i in layout.matrices else w for i, w in enumerate(layout.state_widths)]
        lines.append(f"enum {{ STATES = {len(widths)} }};")
        widths_text = ", ".join(map(str, widths)) or "0"
        lines.append(f"UNUSED static const long state_width[] = {{{widths_text}}};")
        lines.append(file("packed.h"))
        grains = self._granules()
        counts = [layout.padded(block) // layout.lanes for block in layout.gate_blocks]
        lines.append(f"enum {{ GATE_BLOCKS = {max(1, len(counts))} }};")
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
        """Per gate block, the widest panel of any product, so that a worker's range of units is
        whole panels in every product."""
        phases = [phase for direction in self.lowered.directions for phase in direction.all_phases]
        widths: dict[GateBlock, int] = {}
        for product, panels in plan_panels(self.layout, phases, self.isa.pairs).items():
            block = product.gate_block
            widths[block] = max(widths.get(block, 1), panels.width)
        return [widths.get(block, 1) for block in self.layout.gate_blocks]
