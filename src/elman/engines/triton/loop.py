"""All steps in one kernel: each program keeps all weights of its samples on chip."""

from __future__ import annotations

from elman.engines.triton.body import LIVE, Body, only
from elman.engines.triton.layout import TritonLayout, padded
from elman.engines.triton.schedule import TritonSchedule
from elman.engines.triton.statements import (
    Code,
    Statement,
    Var,
    assign,
    code,
    free,
    joined,
    kernel,
    with_heads,
)
from elman.ir.graph import Node
from elman.plan.program import Acc, Buffer, Bundle, Sweep

# numbers that are known when a kernel is compiled
OPTIONS = ("N", "DT", "STAGES", "PRECISION", "INTERPRETED", "BARRIER")
ALL_LIVE, ROW, BEFORE, SAMPLE = map(Var, ("all_live", "row", "before", "n"))
STEP, TIME = Var("i"), Var("t")  # of a kernel's loop, and of the sequence


class Loop(Body):
    """One direction's time loop.

    Args:
        layout, sweep, schedule: of which program, in which direction, and how.
        chunk: offsets of the chunk's slots, and the length of its rows.
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
    """

    numbers: tuple[str, ...] = ("T", "B")
    heads_axis = 1
    steps = "0, T"

    def __init__(
        self,
        layout: TritonLayout,
        sweep: Sweep,
        schedule: TritonSchedule,
        chunk: tuple[list[int], int],
        kept_states: tuple[bool, ...],
        *,
        packed: bool,
        heads: bool,
    ) -> None:
        super().__init__(layout, sweep.step)
        self.chunk, self.kept_states = chunk, kept_states
        self.packed, self.heads = packed, heads
        self.forward = sweep is layout.program.forward
        self.matrices: list[tuple[Node, bool]] = []
        self.arguments: list[str] = []
        self._weights: dict[tuple[Node, bool], Var] = {}
        self._next: dict[int, Node] = {}
        self._columns: dict[int, Var] = {}
        pair = layout.program.pair
        self.leaves = pair.step.states
        self.handed_on = pair.step.states if self.forward else pair.d_next
        self.carried = [Var(f"h{index}") for index in range(len(self.handed_on))]
        self.names |= dict(zip(self.handed_on, self.carried, strict=True))

    def address(self, buffer: Buffer) -> Code:
        """See :meth:`Body.address`."""
        where, layout = buffer.where, self.layout
        if where in ("tape", "chunk"):
            return self.slot("tape" if where == "tape" else "ch", buffer)
        column = layout.column(buffer)
        if where in ("input", "d_output"):  # the caller's, of any strides but along units
            name = f"in{column.array}" if where == "input" else "dy"
            stride = Var(f"{name}_b")
            return code("{} + {} * {} + {}", Var(name), ROW, stride, column.offset)
        if where == "output":
            return code("{} + {} * {} + {}", Var("out"), ROW, layout.output_width, column.offset)
        assert where in ("state", "next"), f"a {where} is not memory of a loop"
        row = code("{}", BEFORE) if where == "state" else code("({} + B)", ROW)
        if column.array in layout.held:
            row = code("{}", SAMPLE)
        width = layout.state_widths[column.array]
        return code("{} + {} * {} + {}", Var(f"st{column.array}"), row, width, column.offset)

    def slot(self, array: str, buffer: Buffer) -> Code:
        """Where a slot of the tape, or of the chunk, lies in an array."""
        is_tape = buffer.where == "tape"
        offsets = self.layout.tape if is_tape else self.chunk[0]
        width = self.layout.tape_row if is_tape else self.chunk[1]
        return code("{} + {} * {} + {}", Var(array), ROW, width, offsets[buffer.index])

    def store(self, buffer: Buffer, value: Node) -> None:
        """See :meth:`Body.store`; what the next step reads stays at hand."""
        if buffer.where in ("next", "d_state"):
            self._next[buffer.index] = value
        if self.goes_to_memory(buffer, value):
            super().store(buffer, value)

    def goes_to_memory(self, buffer: Buffer, value: Node) -> bool:
        """Whether a store is more than a variable; values of a step are at hand."""
        if buffer.where == "next":
            array = self.layout.column(buffer).array
            return self.kept_states[array] and array not in self.layout.held
        return buffer.where not in ("scratch", "d_state")

    def array(self, matrix: Node, is_transposed: bool) -> tuple[Var, Var]:
        """A matrix's array, as it is or transposed, and its stride."""
        if (matrix, is_transposed) not in self.matrices:
            self.matrices.append((matrix, is_transposed))
        name = f"m{self.matrices.index((matrix, is_transposed))}"
        return Var(name), Var(f"{name}_r")

    def shape(self, matrix: Node, transposed: bool) -> tuple[int, int]:
        """Units of a product with a matrix, and those that it sums over."""
        rows, columns = (self.layout.size(dim[0]) for dim in matrix.shape)
        return (columns, rows) if transposed else (rows, columns)

    def _weight(self, matrix: Node, transposed: bool) -> Var:
        """A matrix that was loaded before the loop."""
        if (matrix, transposed) in self._weights:
            return self._weights[matrix, transposed]
        array, stride = self.array(matrix, transposed)
        out, inner = self.shape(matrix, transposed)
        u = self.units(out)
        if inner not in self._columns:
            self._columns[inner] = Var(f"c{inner}")
            self.before.append(
                assign(self._columns[inner], "tl.arange(0, {})[None, :]", padded(inner))
            )
        c = self._columns[inner]
        sizes = [(name, size) for name, size in ((u, out), (c, inner)) if padded(size) != size]
        mask = code("")
        if sizes:
            inside = joined([code("({} < {})", *of) for of in sizes], " & ")
            mask = code(", mask={}, other=0.0", inside)
        name = self._weights[matrix, transposed] = self.fresh("w")
        at = code("{} + {} * {} + {}", array, u, stride, c)
        self.before.append(assign(name, "tl.load({}{}).to(DT)", at, mask))
        return name

    def accumulated(self, bundle: Bundle) -> list[Var]:
        """See :meth:`Body.accumulated`."""
        return [self._product(acc) for acc in bundle.accs]

    def _product(self, acc: Acc) -> Var:
        """A chain of products on weights that are held."""
        units = self.block_of(self.layout.width(acc.into))
        total: Code | Var = code("tl.zeros([{}, N], tl.float32)", units)
        for term in acc.terms:
            matrix, operand = term.args
            weight = self._weight(matrix, term.transposed)
            value = only(*self.all_units(operand))
            call = "lib.dot({}, ({}).to(DT), {}, PRECISION, INTERPRETED)"
            total = self.define(call, weight, value, total, letter="a")
        assert isinstance(total, Var), "a product has terms"
        return total

    def text(self) -> str:
        """The kernel, called ``loop``."""
        for segment in self.phase.segments:
            self.segment(segment)
        step, begin, end = self.step(), self.begin(), self.end()
        numbers = code("tl.range({}, num_stages=STAGES)", self.steps)
        loop = Statement(numbers, (STEP,), body=step)
        body = [*self.samples(), *self.before, *begin, loop, *end]
        arrays, heads = free(body), list[Statement]()
        if self.heads:
            arrays, heads = with_heads(arrays, self.heads_axis)
        self.arguments = [*arrays, *self.numbers]
        options = [f"{name}: tl.constexpr" for name in OPTIONS]
        unspecialised = [name for name in self.numbers if name != "B"]
        return kernel("loop", [*self.arguments, *options], [*heads, *body], unspecialised)

    def samples(self) -> list[Statement]:
        """Which samples are a program's."""
        return self.samples_from(code("tl.program_id(0)"))

    def samples_from(self, block: Code) -> list[Statement]:
        """The samples of a block of a batch."""
        return [
            assign(SAMPLE, "({} * N + tl.arange(0, N)).to(tl.int64)[None, :]", block),
            assign(LIVE, "{} < B", SAMPLE),
            assign(ALL_LIVE, "{}", LIVE),
        ]

    def step(self) -> tuple[Statement, ...]:
        """All statements of a step."""
        return (*self.step_head(), *self.statements, *self.step_end())

    def step_head(self) -> list[Statement]:
        """Where a step's rows lie; first comes its number."""
        number = assign(TIME, "{}" if self.forward else "T - 1 - {}", STEP)
        if not self.packed:
            return [
                number,
                assign(ROW, "{} * B + {}", TIME, SAMPLE),
                assign(BEFORE, "{}", ROW),
            ]
        rows, first = Var("rows"), Var("first")
        previous = "tl.where({1} > 0, tl.load({0} + tl.maximum({1} - 1, 0)) + B, 0) + {2}"
        return [
            number,
            assign(first, "tl.load({} + {})", rows, TIME),
            assign(LIVE, "{} < tl.load({} + {} + 1) - {}", SAMPLE, rows, TIME, first),
            assign(ROW, "{} + {}", first, SAMPLE),
            assign(BEFORE, previous, rows, TIME, SAMPLE),
        ]

    def step_end(self) -> list[Statement]:
        """Hand on what the next step reads; a sample whose steps are over keeps its own."""
        ends: list[Statement] = []
        for index, value in self._next.items():
            state = self.broadcast(self.use(value), value)
            if self.packed:
                state = code("tl.where({}, {}, {})", LIVE, state, self.carried[index])
            ends.append(assign(Var(f"next_{index}"), state))
        moves = [assign(self.carried[k], "{}", Var(f"next_{k}")) for k in self._next]
        return [*ends, *moves]

    def _ends(self, name: str, index: int) -> tuple[Code, Code]:
        """Pointers to a state's gate block in an array [B, n] per state, and their mask."""
        column, leaf = self.layout.states[index], self.leaves[index]
        width = self.layout.state_widths[column.array]
        array = Var(f"{name}{column.array}")
        at = code("{} + {} * {} + {}", array, SAMPLE, width, column.offset)
        if not leaf.shape:
            return at, code("{}", ALL_LIVE)
        return code("{} + {}", at, self.units(column.width)), self.inside(column.width, ALL_LIVE)

    def begin(self) -> list[Statement]:
        """Load the states before the first step."""
        name = "first" if self.forward else "dlast"
        load = "tl.load({}, mask={}, other=0.0).to(tl.float32)"
        return [assign(state, load, *self._ends(name, k)) for k, state in enumerate(self.carried)]

    def end(self) -> list[Statement]:
        """Store the states after the last step."""
        name = "last" if self.forward else "dfirst"
        ends = [(*self._ends(name, k), state) for k, state in enumerate(self.carried)]
        return [Statement(code("lib.put({0}, {2}, {1})", *end)) for end in ends]
