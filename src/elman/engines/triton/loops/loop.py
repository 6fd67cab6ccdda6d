"""All steps in one kernel: each program keeps all weights of its samples on chip.

Loads run a step ahead, into registers that the loop carries: a load takes as long as half a step.
(Triton's own pipelining does not apply to a loop with barriers.)
"""

from __future__ import annotations

from elman.engines.triton.device.schedule import TritonSchedule
from elman.engines.triton.device.source import indented, kernel
from elman.engines.triton.text.layout import TritonLayout, array_of, padded
from elman.engines.triton.text.printer import Printer, only, overlap, with_heads
from elman.ir.graph import Node
from elman.lowered.lower import DirectionLowering
from elman.lowered.types import Access, Matrix, Phase, Product, Space, Term

# constants of a compiled kernel
OPTIONS = ("N", "DT", "PRECISION", "INTERPRETED", "BARRIER")
_OF_CALLERS = (Space.INPUT, Space.D_OUTPUT)  # callers' arrays: any strides, contiguous units
_AT_HAND = (Space.SCALAR, Space.SCRATCH, Space.CARRY)
NEXT = "_next"  # suffix of the next step's variables


class Loop(Printer):
    """One direction's time loop.

    Args:
        layout, schedule: of the program.
        lowering, phase: the direction, and its step.
        kept_states: which states are stored at every step.
        packed: whether rows are packed, each sample with its own number of steps.
        heads: whether there are several heads, each with programs, arrays and weights of its own.

    Attributes:
        numbers: names of the kernel's number arguments.
        heads_axis: axis of the grid of programs along which heads lie.
        steps: the first step, and the end after the last.
        matrices: matrices of the products, in the order of ``m0``, ``m1`` …, and whether each is
            passed transposed, so that its inner dim is contiguous, as tensor cores read.
        arguments: names of the kernel's arguments, set by :meth:`text`.
    """

    numbers: tuple[str, ...] = ("T", "B")
    heads_axis = 1
    steps: tuple[str, str] = ("0", "T")

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
        self._ahead: list[tuple[str, Access]] = []  # columns loaded a step ahead, and variables
        self._mark = ""  # suffix of the printed step's variables
        self._ordered = False

    @property
    def live(self) -> str:
        """See :class:`Printer`."""
        return f"live{self._mark}"

    @property
    def time(self) -> str:
        """The variable of the step's number in the sequence."""
        return f"t{self._mark}"

    def address(self, access: Access) -> str:
        return self.column(access, array_of(access))

    def column(self, access: Access, array: str) -> str:
        """Pointers to a column in an array."""
        region, row = access.region, f"row{self._mark}"
        stride: object = region.row
        if region.space in _OF_CALLERS:
            stride = self.array(f"{array}_b")
        elif region.space is Space.STATE:
            array = f"st{region.array}"
            row = f"({row} + B)" if access.step else f"before{self._mark}"
            if region.array in self.layout.held:
                row = "n"
        return f"{self.array(array)} + {row} * {stride} + {access.offset}"

    def in_memory(self, access: Access) -> bool:
        """See :meth:`Printer.in_memory`: not columns that only this step or the next one reads."""
        if access.region.space is Space.STATE:
            return self.kept_states[access.region.array]
        return access.region.space not in _AT_HAND

    def load(self, access: Access) -> str:
        """See :meth:`Printer.load`: a step ahead, which is safe because this kernel does not write
        the columns that it loads before it loads them."""
        raw = self.fresh("r")
        self._ahead.append((raw, access))
        return self.define(f"{raw}.to(tl.float32)")

    def order(self, access: Access) -> None:
        """See :meth:`Printer.order`: the first barrier of a step ends all of its loads."""
        if not self._ordered and any(overlap(access, loaded) for _, loaded in self._ahead):
            self._ordered = True
            self.lines.append("tl.debug_barrier()")

    def matrix(self, term: Term) -> tuple[str, str]:
        """A matrix's array, transposed or not, and its stride."""
        key = self.layout.memory.values[term.matrix], term.transposed
        if key not in self.matrices:
            self.matrices.append(key)
        name = f"m{self.matrices.index(key)}"
        return self.array(name), self.array(f"{name}_r")

    def _weight(self, term: Term) -> str:
        """The variable of a matrix, which is loaded before the loop."""
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
        """See :meth:`Printer.product`: chains of products with weights on chip."""
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
        loop = f"for i in tl.range({', '.join(self.steps)}, num_stages=1):"
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
        self.at_hand = {before: f"h{k}" for k, (before, _) in enumerate(self.carried)}
        for segment in self.phase.segments:
            self.segment(segment)

    def samples(self, block: str = "tl.program_id(0)") -> list[str]:
        """Define the indices of a program's samples, and the mask of those that exist."""
        return [
            f"n = ({block} * N + tl.arange(0, N)).to(tl.int64)[None, :]",
            "all_live = n < B",
            "live = all_live",
        ]

    def step(self) -> list[str]:
        """All lines of a step."""
        return [line for part in self.step_parts() for line in part]

    def step_parts(self) -> list[list[str]]:
        """The head of a step, the loads of the next one, the rest."""
        ahead = self.loads_ahead("i + 1")
        taken = [f"{raw} = {raw}{NEXT}" for raw, _ in self._ahead]
        return [self.step_head("i"), ahead, [*self.lines, *self.step_end(), *taken]]

    def step_head(self, number: str) -> list[str]:
        """The number of a step in the sequence, and its rows."""
        mark, t = self._mark, self.time
        time = f"{t} = {number if self.forward else f'T - 1 - ({number})'}"
        if not self.packed:
            return [time, f"row{mark} = {t} * B + n", f"before{mark} = row{mark}"]
        rows = self.array("rows")
        previous = f"tl.load({rows} + tl.maximum({t} - 1, 0)) + B"
        return [
            time,
            f"first{mark} = tl.load({rows} + {t})",
            f"live{mark} = n < tl.load({rows} + {t} + 1) - first{mark}",
            f"row{mark} = first{mark} + n",
            f"before{mark} = tl.where({t} > 0, {previous}, 0) + n",
        ]

    def loads_ahead(self, number: str, mark: str = NEXT) -> list[str]:
        """The loads of a step, masked if there is no such step."""
        if not self._ahead:
            return []
        self._mark = mark
        # packed rows are looked up by the number of a step, which must not be beyond the last
        head = self.step_head(f"tl.minimum({number}, T - 1)" if self.packed else number)
        inside = self.live if self.packed else "all_live"
        live = f"{self.live} = {inside} & ({number} < {self.steps[1]})"
        loads = [f"{raw}{mark} = {self.load_ahead(k)}" for k, (raw, _) in enumerate(self._ahead)]
        self._mark = ""
        return [*head, live, *loads]

    def load_ahead(self, k: int) -> str:
        """The k-th load of the next step."""
        return self.loaded(self._ahead[k][1])

    def step_end(self) -> list[str]:
        """Hand states on to the next step; a sample that has ended keeps its state."""
        ends: list[str] = []
        moves: list[str] = []
        for after, k in self._next.items():
            if after not in self.at_hand:
                continue
            state = self.broadcast(self.at_hand[after], after)
            if self.packed:
                state = f"tl.where({self.live}, {state}, h{k})"
            ends.append(f"next_{k} = {state}")
            moves.append(f"h{k} = next_{k}")
        return [*ends, *moves]

    def _ends(self, name: str) -> list[tuple[str, str, str]]:
        """The variable of each state, pointers to its gate block in an array [B, n] per state, and
        their mask."""
        ends: list[tuple[str, str, str]] = []
        for k, (access, _) in enumerate(self.carried):
            column = self.layout.states[k]
            at = f"{self.end_row(name, column.array, k)} + {column.offset}"
            ends.append((f"h{k}", *self.end_units(k, at, access)))
        return ends

    def end_row(self, name: str, array: int, k: int) -> str:
        """Pointers to a sample's row of the array of initial or last states."""
        return f"{self.array(f'{name}{array}')} + n * {self.layout.state_widths[array]}"

    def end_units(self, k: int, at: str, access: Access) -> tuple[str, str]:
        """Pointers to the units of an initial or last state, from that to the first, and their
        mask."""
        if access.scalar:
            return at, "all_live"
        return f"{at} + {self.units(access.units)}", self.inside(access.units, "all_live")

    def begin(self) -> list[str]:
        """Load the states before the first step, and that step's columns."""
        states = [
            f"{state} = tl.load({at}, mask={mask}, other=0.0).to(tl.float32)"
            for state, at, mask in self._ends("first" if self.forward else "dlast")
        ]
        first = self.loads_ahead(self.steps[0])
        return [*states, *first, *(f"{raw} = {raw}{NEXT}" for raw, _ in self._ahead)]

    def end(self) -> list[str]:
        """Store the states after the last step."""
        ends = self._ends("last" if self.forward else "dfirst")
        return [f"lib.put({at}, {state}, {mask})" for state, at, mask in ends]


def shape(term: Term) -> tuple[int, int]:
    """Output and inner units of a product."""
    matrix: Matrix = term.matrix
    rows, columns = matrix.rows, matrix.columns
    return (columns, rows) if term.transposed else (rows, columns)
