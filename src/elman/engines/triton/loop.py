"""All steps in one kernel: each program keeps all weights of its samples on chip."""

from __future__ import annotations

from typing import NamedTuple

from elman.engines.triton.layout import TritonLayout, array_of, padded
from elman.engines.triton.printer import Printer, only, with_heads
from elman.engines.triton.schedule import TritonSchedule
from elman.engines.triton.source import indented, kernel
from elman.ir.graph import Node
from elman.lowered.lower import DirectionLowering
from elman.lowered.types import Access, Matrix, Phase, Product, Space, Term

# numbers that are known when a kernel is compiled
OPTIONS = ("N", "DT", "STAGES", "PRECISION", "INTERPRETED", "BARRIER")
_OF_CALLERS = (Space.INPUT, Space.D_OUTPUT)  # of any strides but along units
_AT_HAND = (Space.SCALAR, Space.SCRATCH, Space.CARRY)


class Names(NamedTuple):
    """Variables of some samples: their numbers, which there are, which are in a step; the rows of a
    step, and of the states before it."""

    n: str
    all_live: str
    live: str
    row: str
    before: str
    mark: str

    @staticmethod
    def marked(mark: str) -> Names:
        """Names that end with a mark."""
        return Names(*(f"{name}{mark}" for name in ("n", "all_live", "live", "row", "before", "")))


class Loop(Printer):
    """One direction's time loop.

    Args:
        layout, schedule: of the program, and how it runs.
        lowering, phase: the direction, and its step.
        kept_states: which states are stored at every step.
        packed: whether rows are packed, each sample with its own number of steps.
        heads: whether there are several, each with programs, arrays and weights of its own.

    Attributes:
        numbers: names of the numbers that the kernel is called with.
        heads_axis: of the grid of programs, along which there are heads.
        steps: text of the range of steps.
        matrices: what the products multiply with, in the order of ``m0``, ``m1`` …; and whether
            it is given transposed: what is summed over lies side by side, as tensor cores read.
        arguments: names of the kernel's arguments, once there is a text.
        names: of the samples that are printed.
        time: variable of the step's number in the sequence.
    """

    numbers: tuple[str, ...] = ("T", "B")
    heads_axis = 1
    steps = "0, T"

    def __init__(
        self,
        layout: TritonLayout,
        schedule: TritonSchedule,
        lowering: DirectionLowering,
        phase: Phase,
        kept_states: tuple[bool, ...],
        *,
        packed: bool,
        heads: bool,
    ) -> None:
        super().__init__(layout)
        self.phase, self.kept_states, self.packed, self.heads = phase, kept_states, packed, heads
        self.forward = lowering.name == "forward"
        self.matrices: list[tuple[Node, bool]] = []
        self.arguments: list[str] = []
        self.carried = lowering.carried()
        self._next = {after: k for k, (_, after) in enumerate(self.carried)}
        self.time = "t"
        self.names = Names.marked("")

    @property
    def live(self) -> str:
        """See :class:`Printer`."""
        return self.names.live

    def state(self, k: int) -> str:
        """The variable of a state, or of its cotangent, between steps."""
        return f"h{k}{self.names.mark}"

    def address(self, access: Access) -> str:
        """See :meth:`Printer.address`."""
        return self.column(access, array_of(access))

    def column(self, access: Access, array: str) -> str:
        """Pointers to a column in an array."""
        region, row = access.region, self.names.row
        stride: object = region.row
        if region.space in _OF_CALLERS:
            stride = self.array(f"{array}_b")
        elif region.space is Space.STATE:
            array = f"st{region.array}"
            row = f"({row} + B)" if access.step else self.names.before
            if region.array in self.layout.held:
                row = self.names.n
        return f"{self.array(array)} + {row} * {stride} + {access.offset}"

    def in_memory(self, access: Access) -> bool:
        """See :meth:`Printer.in_memory`: not what a step or the next one alone reads."""
        if access.region.space is Space.STATE:
            return self.kept_states[access.region.array]
        return access.region.space not in _AT_HAND

    def matrix(self, term: Term) -> tuple[str, str]:
        """A matrix's array, as it is or transposed, and its stride."""
        key = self.layout.memory.values[term.matrix], term.transposed
        if key not in self.matrices:
            self.matrices.append(key)
        name = f"m{self.matrices.index(key)}"
        return self.array(name), self.array(f"{name}_r")

    def _weight(self, term: Term) -> str:
        """A matrix that was loaded before the loop."""
        array, stride = self.matrix(term)
        out, inner = shape(term)
        u = self.units(out)
        c = self.once(("inner", inner), "c", f"tl.arange(0, {padded(inner)})[None, :]")
        sizes = [(name, size) for name, size in ((u, out), (c, inner)) if padded(size) != size]
        inside = " & ".join(f"({name} < {size})" for name, size in sizes)
        mask = f", mask={inside}, other=0.0" if inside else ""
        load = f"tl.load({array} + {u} * {stride} + {c}{mask}).to(DT)"
        return self.once(term, "w", load)

    def product(self, product: Product) -> list[str]:
        """See :meth:`Printer.product`: chains of products on weights that are held."""
        units = self.block_of(self.layout.size(product.gate_block))
        sums: list[str] = []
        for acc in product.accs:
            total = f"tl.zeros([{units}, N], tl.float32)"
            for term, operand in zip(acc, product.operands, strict=True):
                weight, value = self._weight(term), only(*self.all_units(operand))
                dot = f"lib.dot({weight}, ({value}).to(DT), {total}, PRECISION, INTERPRETED)"
                total = self.define(dot, "a")
            sums.append(total)
        return sums

    def text(self) -> str:
        """The kernel, called ``loop``."""
        self.print_steps()
        step, begin, end = self.step(), self.begin(), self.end()
        loop = f"for i in tl.range({self.steps}, num_stages=STAGES):"
        lines = [*self.samples(), *self.before, *begin, loop, *indented(step), *end]
        arrays, to_head = [*self.arrays], list[str]()
        if self.heads:
            arrays, to_head = with_heads(arrays, self.heads_axis)
        self.arguments = [*arrays, *self.numbers]
        options = [f"{name}: tl.constexpr" for name in OPTIONS]
        unspecialised = [name for name in self.numbers if name != "B"]
        return kernel("loop", [*self.arguments, *options], [*to_head, *lines], unspecialised)

    def print_steps(self) -> None:
        """Print the segments of a step."""
        self.at_hand = {before: self.state(k) for k, (before, _) in enumerate(self.carried)}
        for segment in self.phase.segments:
            self.segment(segment)

    def samples(self) -> list[str]:
        """Which samples are a program's."""
        return self.samples_from("tl.program_id(0)")

    def samples_from(self, block: str) -> list[str]:
        """The samples of a block of a batch."""
        n, all_live, live, *_ = self.names
        return [
            f"{n} = ({block} * N + tl.arange(0, N)).to(tl.int64)[None, :]",
            f"{live} = {n} < B",
            f"{all_live} = {live}",
        ]

    def step(self) -> list[str]:
        """All lines of a step."""
        return [self.number("i"), *self.step_head(), *self.lines, *self.step_end()]

    def number(self, step: str) -> str:
        """The line of a step's number in the sequence."""
        return f"{self.time} = {step if self.forward else f'T - 1 - {step}'}"

    def step_head(self) -> list[str]:
        """Where a step's rows lie."""
        n, _, live, row, before, mark = self.names
        t, first = self.time, f"first{mark}"
        if not self.packed:
            return [f"{row} = {t} * B + {n}", f"{before} = {row}"]
        rows = self.array("rows")
        previous = f"tl.load({rows} + tl.maximum({t} - 1, 0)) + B"
        return [
            f"{first} = tl.load({rows} + {t})",
            f"{live} = {n} < tl.load({rows} + {t} + 1) - {first}",
            f"{row} = {first} + {n}",
            f"{before} = tl.where({t} > 0, {previous}, 0) + {n}",
        ]

    def step_end(self) -> list[str]:
        """Hand on what the next step reads; a sample whose steps are over keeps its own."""
        ends: list[str] = []
        moves: list[str] = []
        for after, k in self._next.items():
            if after not in self.at_hand:
                continue
            state = self.broadcast(self.at_hand[after], after)
            if self.packed:
                state = f"tl.where({self.live}, {state}, {self.state(k)})"
            ends.append(f"next_{k}{self.names.mark} = {state}")
            moves.append(f"{self.state(k)} = next_{k}{self.names.mark}")
        return [*ends, *moves]

    def _ends(self, name: str) -> list[tuple[str, str, str]]:
        """The variable of each state, pointers to its gate block in an array [B, n] per state, and
        their mask."""
        ends: list[tuple[str, str, str]] = []
        for k, (access, _) in enumerate(self.carried):
            column, mask = self.layout.states[k], self.names.all_live
            array, width = f"{name}{column.array}", self.layout.state_widths[column.array]
            at = f"{self.array(array)} + {self.names.n} * {width} + {column.offset}"
            if not access.scalar:
                at, mask = f"{at} + {self.units(column.width)}", self.inside(column.width, mask)
            ends.append((self.state(k), at, mask))
        return ends

    def begin(self) -> list[str]:
        """Load the states before the first step."""
        return [
            f"{state} = tl.load({at}, mask={mask}, other=0.0).to(tl.float32)"
            for state, at, mask in self._ends("first" if self.forward else "dlast")
        ]

    def end(self) -> list[str]:
        """Store the states after the last step."""
        ends = self._ends("last" if self.forward else "dfirst")
        return [f"lib.put({at}, {state}, {mask})" for state, at, mask in ends]


def shape(term: Term) -> tuple[int, int]:
    """Units of a product with a matrix, and those that it sums over."""
    matrix: Matrix = term.matrix
    rows, columns = matrix.rows, matrix.columns
    return (columns, rows) if term.transposed else (rows, columns)
