"""One layer's step as a C function: the lowered program's forward for one sample.

What is computed, in which order and where it lies is the program's; how an operation is spelled is
engine c's. Weights, and what depends on them alone, become constant arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from elman.engines.base import Job
from elman.engines.c.compilation.isa import AVX512
from elman.engines.c.matrices.passes import MatrixSpelling
from elman.engines.c.spelling.values import accesses
from elman.engines.weights import WeightRate
from elman.ir.graph import Node
from elman.lowered.groups import unrolled_phase
from elman.lowered.layout import Layout
from elman.lowered.lower import Lowered, lower
from elman.lowered.types import Acc, Access, Matrix, Multiply, Part, Phase, Space
from elman.plan.build import program

TILE = 64  # rows of a matrix side by side, as in portable.h
MOST_LANES = 16  # that a build can have: rows and arrays are padded to so many numbers


class StepPrinter(MatrixSpelling):
    """Prints one phase for one sample.

    Args:
        layer: whose phase it is.
        scratch, scalars: where those of the phase begin.
    """

    vectors = "vec"

    def __init__(self, layer: LayerText, scratch: int, scalars: int) -> None:
        super().__init__(layer.layout)
        self.layer, self.scratch, self.scalars = layer, scratch, scalars
        self._columns: list[list[int]] = []  # of the part that is printed, where its sums begin

    def at(self, access: Access, row: str = "") -> str:
        """See :meth:`Spelling.at`; there is one row."""
        space, array, offset = access.region.space, access.region.array, access.offset
        if space in (Space.VECTOR, Space.SCALAR):
            return super().at(access)
        if space in (Space.STATE, Space.GATHERED, Space.LOCAL):
            base = f"{'n' if access.step and array not in self.layout.held else 'h'}{array}"
        elif space is Space.SCRATCH:
            base, offset = "scratch", offset + self.scratch
        else:
            base = {Space.INPUT: f"in{array}", Space.OUTPUT: "y", Space.CHUNK: "chunk"}[space]
        return f"{base} + {offset}" if offset else base

    def scalar(self, access: Access) -> str:
        return str(self.scalars + access.offset)

    def acc(self, acc: Acc) -> str:
        return f"ld(sums + {self._columns[acc.product][acc.index]} + u)"

    def lines(self, phase: Phase) -> list[str]:
        """All segments in order."""
        lines: list[str] = []
        for segment in phase.segments:
            if segment.scalars:
                stores = ["    " + self.scalar_store(store) for store in segment.scalars]
                lines += ["{", "    const long u = 0; (void)u;", *stores, "}"]
            for part in segment.parts:
                lines += self._part(part)
        return lines

    def _part(self, part: Part) -> list[str]:
        if part.axes is not None:
            return self.matrix_part(part)
        size, width = self.layout.size(part.gate_block), self.layout.padded(part.gate_block)
        calls: list[str] = []
        self._columns = []
        for product in part.products:
            first = sum(map(len, self._columns))
            columns = [(first + index) * width for index in range(len(product.accs))]
            self._columns.append(columns)
            self.layer.sums_size = max(self.layer.sums_size, *(at + width for at in columns))
            for at, acc in zip(columns, product.accs, strict=True):
                for number, (term, operand) in enumerate(zip(acc, product.operands, strict=True)):
                    name, K = self.layer.matrix(term.matrix, term.transposed)
                    source = self.at(operand)
                    calls.append(
                        f"product({name}, {K}, {size}, {source}, sums + {at}, {int(number > 0)});"
                    )
        lines = self.body(part.body)
        if not lines:
            return calls
        head = f"for (long u = 0; u < {size}; u += LANES) {{"
        return [*calls, head, *("    " + line for line in lines), "}"]

    def matrix_part(self, part: Part) -> list[str]:
        """See :meth:`MatrixSpelling.matrix_part`; of as many lanes as the text is compiled for."""
        assert part.axes is not None
        rows, columns = part.axes
        lines = self.matrix_pass(part, columns)
        by_row, vectors = lines.sums["rows"], f"(({columns} + LANES - 1) / LANES)"

        def in_vectors(inner: Sequence[str]) -> list[str]:
            head = f"for (long k = 0; k < {vectors}; k++) {{"
            inner = ["const long u = k * LANES; (void)u;", *inner]
            return [head, *("    " + line for line in inner), "}"] if len(inner) > 1 else []

        loop = [
            *(f"V {name}[{vectors}];" for name in self.arrays(lines)),
            *(f"V a{number} = {{0}};" for number, _ in lines.sums[None]),
            *lines.once,
            *in_vectors(self.column_values(lines)),
            f"for (long i = 0; i < {rows}; i++) {{",
            *(f"    V a{number} = {{0}};" for number, _ in by_row),
            *(f"    const V {name} = {text};" for name, text in lines.by_row),
            *("    " + line for line in in_vectors(lines.in_vector)),
            *(
                f"    ({self.at(access)})[i] = total_of(a{number});"
                for number, statement in by_row
                for access in statement.accesses
            ),
            "}",
            *in_vectors(self.column_results(lines.sums)),
            *self.totals(lines.sums, "a"),
        ]
        products = [s for s in part.body if isinstance(s, Multiply)]
        multiplied = [line for s in products for line in self.multiply(s)]
        statements = [*(loop if lines.in_vector else ()), *multiplied]
        return ["{", *("    " + line for line in statements), "}"] if statements else []


@dataclass(eq=False)
class LayerText:
    """The step of one layer.

    Args:
        name: of what is defined in C: ``model_l0``.
        job: of one layer in inference.
        weights: in declared order, in float64.
        constants: values that the last states hold, [n] each.

    Attributes:
        variables: states that a sequence changes, or that its caller sets.
        matrices: C name, and the array, of each matrix.
        lines: of the function's body.
        scratch, scalars, sums_size: numbers of the memory for each.
    """

    name: str
    job: Job
    weights: Sequence[Tensor]
    constants: Sequence[Tensor] = ()
    matrices: dict[tuple[Matrix, bool], tuple[str, Tensor]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    scratch: int = 0
    scalars: int = 0
    sums_size: int = 0

    def __post_init__(self) -> None:
        lanes = AVX512.lanes(self.job.spec.dtype)
        self._lowered: Lowered = lower(program(self.job.pair, self.job.spec), lanes)
        self.layout: Layout = self._lowered.layout
        self.variables = range(len(self.layout.state_widths) - len(self.constants))
        self.chunk = self._lowered.forward.chunk_row
        self._rate = WeightRate(self.job)
        self._values: dict[Node, Tensor] = {}
        # each group has arrays of its own, by name
        self._phases = [unrolled_phase(phase) for phase in self._lowered.forward.phases]
        for phase in self._phases:
            self.lines += StepPrinter(self, self.scratch, self.scalars).lines(phase)
            self.scratch += phase.scratch_row
            self.scalars += phase.scalars

    def matrix(self, matrix: Matrix, transposed: bool) -> tuple[str, int]:
        """The C name of a matrix in tiles, and its columns."""
        key = matrix, transposed
        if key not in self.matrices:
            W = self._value(self._lowered.memory.values[matrix])
            name = f"{self.name}_w{len(self.matrices)}"
            self.matrices[key] = name, W.T if transposed else W
        name, W = self.matrices[key]
        return name, W.shape[1]

    def _value(self, value: Node) -> Tensor:
        """A value of weight rate."""
        if value not in self._values:
            self._values |= self._rate.values(self.weights, (value,))
        return self._values[value]

    def vectors(self) -> Tensor:
        """Vectors and scalars of weight rate that the loops read, concatenated."""
        segments = [segment for phase in self._phases for segment in phase.segments]
        columns = [access for segment in segments for access in accesses(segment)]
        offsets = {column.offset for column in columns if column.region.space is Space.VECTOR}
        parts: list[Tensor] = []
        for value, start in self._lowered.memory.offsets.items():
            if start in offsets:
                numbers = self._value(value).reshape(-1)
                width = self.layout.padded(value.shape[0][0]) if value.shape else self.layout.lanes
                parts.append(torch.nn.functional.pad(numbers, (0, width - len(numbers))))
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def tile_matrix(W: Tensor) -> Tensor:
    """A matrix [N, K] as ``product`` reads it: tiles of rows, each [K][rows]; numbers that a vector
    may read, and nobody uses, follow."""
    parts = [W[n : n + TILE].T.reshape(-1) for n in range(0, len(W), TILE)]
    return torch.cat([*parts, W.new_zeros(MOST_LANES)])
