"""One layer's step as a C function: the program's forward for one sample, spelled once more.

What is computed, in which order and where it lies is the program's; how an operation is spelled is
engine c's. Weights, and what depends on them alone, become constant arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from elman.engines.base import Job
from elman.engines.c.isa import AVX512
from elman.engines.c.layout import CLayout, invariant_reads
from elman.engines.c.phases import PhaseWriter
from elman.engines.c.places import RowAddress
from elman.engines.weights import WeightRate
from elman.ir.graph import Node
from elman.plan.build import program
from elman.plan.program import Buffer, Part, Phase, Program, Segment

TILE = 64  # rows of a matrix side by side, as in portable.h
MOST_LANES = 16  # that a build can have: rows and arrays are padded to so many numbers


class OneRow(RowAddress):
    """A column of the only row there is."""

    def at(self, row: str) -> str:
        """See :meth:`RowAddress.at`."""
        return f"{self.base} + {self.offset}" if self.offset else self.base


class StepWriter(PhaseWriter):
    """Spells the segments of one phase for one sample."""

    vectors = "vec"

    def __init__(self, layer: LayerText, phase: Phase, offset: int) -> None:
        self.layer, self.layout, self.phase = layer, layer.layout, phase
        self.scratch, self.scratch_row = layer.layout.scratch(phase)
        self.scratch_row += offset
        self.offset = offset
        self.chunk = layer.layout.chunk(layer.program.forward.chunk)

    def place(self, buffer: Buffer, value: Node) -> RowAddress:
        """See :meth:`PhaseWriter.place`."""
        where, index = buffer.where, buffer.index
        if where in ("input", "state", "next", "output"):
            column = self.layout.column(buffer)
            base = {"input": f"in{column.array}", "output": "y"}.get(where)
            if base is None:
                now = where == "state" or column.array in self.layout.held
                base = f"{'h' if now else 'n'}{column.array}"
            return OneRow(base, "0", column.offset, column.width if value.shape else None)
        if where == "chunk":
            return OneRow("chunk", "0", self.chunk[0][index], None)
        if where == "scratch":
            return OneRow("scratch", "0", self.offset + self.scratch[index], None)
        raise AssertionError(f"no forward has a {where}")

    def _scalar(self, buffer: Buffer) -> str:
        return str(self.layer.scalar(self.phase, buffer))

    def _part(self, part: Part) -> list[str]:
        size = self.layout.size(part.gate_block)
        columns: dict[Node, str] = {}
        calls: list[str] = []
        for bundle in part.bundles:
            for acc in bundle.accs:
                at = self.layer.sums(part, len(columns))
                columns[acc.into] = f"ld(sums + {at} + u)"
                for number, term in enumerate(acc.terms):
                    matrix, operand = term.args
                    name, K = self.layer.matrix(matrix, term.transposed)
                    source = self.place(self.phase.buffers[operand], operand).at("")
                    calls.append(
                        f"product({name}, {K}, {size}, {source}, sums + {at}, {int(number > 0)});"
                    )
        lines = self._straight(part, columns)
        if not lines:
            return calls
        head = f"for (long u = 0; u < {size}; u += LANES) {{"
        return [*calls, head, *("    " + line for line in lines), "}"]

    def _scalars(self, segment: Segment) -> list[str]:
        return [*self._scalar_values(segment), *self._scalar_stores(segment)]

    def lines(self) -> list[str]:
        """All segments in order."""
        found: list[str] = []
        for segment in self.phase.segments:
            own = self._scalars(segment)
            if any("u" in line for line in own):
                own = ["{", "    const long u = 0; (void)u;", *("    " + v for v in own), "}"]
            found += own
            for part in segment.parts:
                found += self._part(part)
        return found


@dataclass(eq=False)
class LayerText:
    """The step of one layer.

    Args:
        name: of what is defined in C: ``model_l0``.
        job: of one layer in inference.
        weights: in declared order.

    Attributes:
        matrices: C name, and the array, of each matrix.
        lines: of the function's body.
    """

    name: str
    job: Job
    weights: Sequence[Tensor]
    matrices: dict[tuple[Node, bool], tuple[str, Tensor]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.program: Program = program(self.job.pair, self.job.spec)
        self.layout = CLayout(self.program, AVX512)
        forward = self.program.forward
        self._phases = (forward.before, forward.step, forward.after)
        self._scalars: dict[tuple[Phase, int], int] = {}
        self._sums = 0
        self._rate = WeightRate(self.job)
        self._used: dict[Node, Tensor] = {}
        offset = 0
        for phase in self._phases:
            writer = StepWriter(self, phase, offset)
            self.lines += writer.lines()
            offset = writer.scratch_row
        self.scratch = offset
        self.chunk = self.layout.chunk(forward.chunk)[1]

    def scalar(self, phase: Phase, buffer: Buffer) -> int:
        """The place of a phase's scalar among all."""
        return self._scalars.setdefault((phase, buffer.index), len(self._scalars))

    @property
    def scalars(self) -> int:
        """How many scalars a step has."""
        return len(self._scalars)

    def sums(self, part: Part, number: int) -> int:
        """Where a part's products, of which this is so many-th, are summed up."""
        width = self.layout.padded(part.gate_block)
        self._sums = max(self._sums, (number + 1) * width)
        return number * width

    @property
    def sums_size(self) -> int:
        """Of the memory for sums of products (numbers)."""
        return self._sums

    def matrix(self, value: Node, transposed: bool) -> tuple[str, int]:
        """The C name of a matrix in tiles, and its columns."""
        key = value, transposed
        if key not in self.matrices:
            W = self._value(value)
            name = f"{self.name}_w{len(self.matrices)}"
            self.matrices[key] = name, W.T if transposed else W
        name, W = self.matrices[key]
        return name, W.shape[1]

    def _value(self, value: Node) -> Tensor:
        """A value of weight rate."""
        if value not in self._used:
            with torch.no_grad():
                found = self._rate.values([w.detach().double() for w in self.weights], (value,))
            self._used[value] = found[value]
        return self._used[value]

    def vectors(self) -> Tensor:
        """What loops read of weight rate, vectors and scalars, one behind another."""
        reads = [value for value in invariant_reads(self._phases) if value in self.layout.vectors]
        area = torch.zeros(self.layout.vector_area, dtype=torch.float64)
        for value in dict.fromkeys([*reads, *self.layout.vectors]):
            own = self._value(value).reshape(-1)
            start = self.layout.vectors[value]
            area[start : start + len(own)] = own
        return area


def tiled(W: Tensor) -> Tensor:
    """A matrix [N, K] as ``product`` reads it: tiles of rows, each [K][rows]; numbers that a vector
    may read, and nobody uses, follow."""
    parts = [W[n : n + TILE].T.reshape(-1) for n in range(0, len(W), TILE)]
    return torch.cat([*parts, W.new_zeros(MOST_LANES)])
