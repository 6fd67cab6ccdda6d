"""All steps in one kernel: each program keeps all weights of its samples on chip."""

from __future__ import annotations

from elman.engines.triton.body import Body, only
from elman.engines.triton.layout import TritonLayout, padded
from elman.ir.graph import Node
from elman.plan.program import Acc, Buffer, Bundle, Phase

OPTIONS = ("N", "DT", "STAGES", "PRECISION", "INTERPRETED", "BARRIER")  # known when it is compiled


class Loop(Body):
    """One direction's time loop.

    Attributes:
        pointers: names of the kernel's pointer and stride arguments, in order.
        numbers: names of what else is known when it is called.
        heads_axis: of the grid of programs, along which there are heads.
        steps: text of the range of steps.
        matrices: what the products multiply with, in the order of ``m0``, ``m1`` …; and whether
            it is given transposed: what is summed over lies side by side, as tensor cores read.
    """

    numbers: tuple[str, ...] = ("T", "B")
    heads_axis = 1
    steps = "0, T"

    def __init__(
        self,
        layout: TritonLayout,
        phase: Phase,
        chunk: tuple[list[int], int],
        *,
        forward: bool,
        kept_states: tuple[bool, ...],
        packed: bool,
        heads: bool = False,
    ) -> None:
        super().__init__(layout, phase)
        self.chunk, self.forward, self.kept_states, self.packed = (
            chunk,
            forward,
            kept_states,
            packed,
        )
        self.heads = heads  # each a row of programs, with arrays and weights of its own
        self.step = layout.program.pair.step
        self.matrices: list[tuple[Node, bool]] = []
        self.pointers: dict[str, None] = {}
        self._weights: dict[tuple[Node, bool], str] = {}
        self._next: dict[int, Node] = {}
        self._bases: dict[str, str] = {}
        self._columns: set[int] = set()
        leaves = self.step.states if forward else layout.program.pair.d_next
        self.carried = [f"h{i}" for i in range(len(leaves))]
        for name, leaf in zip(self.carried, leaves, strict=True):
            self.names[leaf] = name

    def _base(self, name: str, text: str, *arguments: str) -> str:
        """The name of pointers [1, N] that are computed once per step."""
        self.pointers.update(dict.fromkeys(arguments))
        if name not in self._bases:
            self._bases[name] = text
            self.lines.append(f"{name} = {text}")
        return name

    def _caller_array(self, name: str) -> str:
        """A caller's array, of any strides but along units."""
        return self._base(f"p_{name}", f"{name} + row * {name}_b", name, f"{name}_b")

    def address(self, buffer: Buffer, value: Node) -> str:
        """See :meth:`Body.address`."""
        where, layout = buffer.where, self.layout
        if where in ("input", "d_output"):
            column = layout.column(buffer)
            array = f"in{column.array}" if where == "input" else "dy"
            return f"{self._caller_array(array)} + {column.offset}"
        if where in ("state", "next"):
            column = layout.column(buffer)
            width = layout.state_widths[column.array]
            name, row = ("q", "before") if where == "state" else ("s", "row + B")
            array = f"st{column.array}"
            if column.array in layout.held:
                name, row = "h", "n"
            base = self._base(f"{name}_{array}", f"{array} + ({row}) * {width}", array)
            return f"{base} + {column.offset}"
        if where == "output":
            base = self._base("p_out", f"out + row * {layout.output_width}", "out")
            return f"{base} + {layout.column(buffer).offset}"
        if where == "tape":
            base = self._base("p_tape", f"tape + row * {layout.tape_row}", "tape")
            return f"{base} + {layout.tape[buffer.index]}"
        assert where == "chunk", f"a {where} is not memory of a loop"
        offsets, width = self.chunk
        return f"{self._base('p_ch', f'ch + row * {width}', 'ch')} + {offsets[buffer.index]}"

    def store(self, buffer: Buffer, value: Node) -> None:
        """See :meth:`Body.store`; what the next step reads stays at hand."""
        if buffer.where in ("next", "d_state"):
            self._next[buffer.index] = value
            if buffer.where == "d_state":
                return
            array = self.layout.column(buffer).array
            if array in self.layout.held or not self.kept_states[array]:
                return
        if buffer.where != "scratch":  # values of a step are at hand
            super().store(buffer, value)

    def array(self, matrix: Node, is_transposed: bool) -> str:
        """The name of a matrix's array, as it is or transposed."""
        if (matrix, is_transposed) not in self.matrices:
            self.matrices.append((matrix, is_transposed))
        return f"m{self.matrices.index((matrix, is_transposed))}"

    def _columns_of(self, size: int) -> str:
        name = f"c{size}"
        if size not in self._columns:
            self._columns.add(size)
            self.before.append(f"{name} = tl.arange(0, {padded(size)})[None, :]")
        return name

    def _weight(self, matrix: Node, transposed: bool) -> str:
        """The name of a matrix that was loaded before the loop."""
        cached = self._weights.get((matrix, transposed))
        if cached is not None:
            return cached
        array = self.array(matrix, transposed)
        rows, columns = (self.layout.size(dim[0]) for dim in matrix.shape)
        out, inner = (columns, rows) if transposed else (rows, columns)
        u, c = self.units(out), self._columns_of(inner)
        at = f"{u} * {array}_r + {c}"
        sizes = ((u, out), (c, inner))
        masks = [f"({name} < {size})" for name, size in sizes if padded(size) != size]
        masked = f", mask={' & '.join(masks)}, other=0.0" if masks else ""
        name = self._weights[matrix, transposed] = self.fresh("w")
        self.before.append(f"{name} = tl.load({array} + {at}{masked}).to(DT)")
        return name

    def accumulated(self, bundle: Bundle) -> list[str]:
        """See :meth:`Body.accumulated`."""
        return [self._product(acc) for acc in bundle.accs]

    def _product(self, acc: Acc) -> str:
        """A chain of products on weights that are held."""
        units = self.block_of(self.layout.width(acc.into))
        text = f"tl.zeros([{units}, N], tl.float32)"
        name = ""
        for term in acc.terms:
            matrix, operand = term.args
            weight = self._weight(matrix, term.transposed)
            value = only(*self.all_units(operand))
            name = self.fresh("a")
            self.lines.append(
                f"{name} = lib.dot({weight}, ({value}).to(DT), {text}, PRECISION, INTERPRETED)"
            )
            text = name
        return name

    def text(self) -> str:
        """The kernel, called ``loop``."""
        for segment in self.phase.segments:
            self.segment(segment)
        step, begin, end = self._step(), self._begin(), self._end()
        sizes = [f"m{k}_r" for k in range(len(self.matrices))]
        arrays = [f"m{k}" for k in range(len(self.matrices))]
        packed_rows = ["rows"] if self.packed else []
        names = [*self.pointers, *arrays, *sizes, "vec", *packed_rows, *self.numbers]
        of_heads: list[str] = []
        if self.heads:
            pointers = [name for name in names if "_" not in name and name not in self.numbers]
            names += [f"{name}_h" for name in pointers]
            head = f"tl.program_id({self.heads_axis}).to(tl.int64)"
            of_heads = [f"{name} += {head} * {name}_h" for name in pointers]
        self.pointers = dict.fromkeys(names)
        options = [f"{name}: tl.constexpr" for name in OPTIONS]
        lines = [
            f"@triton.jit(do_not_specialize={[n for n in self.numbers if n != 'B']})",
            f"def loop({', '.join([*self.pointers, *options])}):",
            *("    " + line for line in (*of_heads, *self._samples(), *self.before, *begin)),
            f"    for i in tl.range({self.steps}, num_stages=STAGES):",
            *("        " + line for line in step),
            *("    " + line for line in end),
            "",
        ]
        return "\n".join(lines)

    def _samples(self) -> list[str]:
        """Which samples are a program's."""
        return [
            "n = (tl.program_id(0) * N + tl.arange(0, N)).to(tl.int64)[None, :]",
            "live = n < B",
            "all_live = live",
        ]

    def _step(self) -> list[str]:
        """All lines of a step."""
        return self._step_head() + self.lines + self._step_end()

    def _step_head(self) -> list[str]:
        lines = ["t = i" if self.forward else "t = T - 1 - i"]
        if self.packed:
            lines += [
                "first = tl.load(rows + t)",
                "live = n < tl.load(rows + t + 1) - first",
                "row = first + n",
                "before = tl.where(t > 0, tl.load(rows + tl.maximum(t - 1, 0)) + B, 0) + n",
            ]
        else:
            lines += ["row = t * B + n", "before = row"]
        return lines

    def _step_end(self) -> list[str]:
        """Hand on what the next step reads; a sample whose steps are over keeps its own."""
        lines: list[str] = []
        for index, value in self._next.items():
            text = self.broadcast(self.use(value), value)
            if self.packed:
                text = f"tl.where(live, {text}, {self.carried[index]})"
            lines.append(f"next_{index} = {text}")
        lines += [f"{self.carried[index]} = next_{index}" for index in self._next]
        return lines

    def _ends(self, name: str, index: int) -> str:
        """Text of the pointers to a state's gate block in an array [B, n] per state."""
        column = self.layout.states[index]
        width = self.layout.state_widths[column.array]
        array = f"{name}{column.array}"
        self.pointers[array] = None
        leaf = self.step.states[index]
        units = f" + {self.units(column.width)}" if leaf.shape else ""
        return f"{array} + n * {width} + {column.offset}{units}"

    def _mask(self, index: int) -> str:
        leaf = self.step.states[index]
        return self.inside(self.layout.width(leaf), "all_live") if leaf.shape else "all_live"

    def _begin(self) -> list[str]:
        name = "first" if self.forward else "dlast"
        return [
            f"{carried} = tl.load({self._ends(name, index)}, mask={self._mask(index)}, other=0.0)"
            ".to(tl.float32)"
            for index, carried in enumerate(self.carried)
        ]

    def _end(self) -> list[str]:
        name = "last" if self.forward else "dfirst"
        return [
            f"lib.put({self._ends(name, index)}, {carried}, {self._mask(index)})"
            for index, carried in enumerate(self.carried)
        ]
