"""A program: the graph pair partitioned into phases, segments and parts; the same for every engine.

A *phase* is batched over T·B, or is one step of the loop. A *segment* is a maximal run of values
without a read of other units; a *part* holds a segment's values in one gate block (one width).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from elman.errors import VerifyError
from elman.ir.graph import Node
from elman.ir.pair import Pair, Sum
from elman.ir.types import GateBlock
from elman.plan.spec import Spec

Where = Literal[
    "input",  # row (t, b) of an input of the cell
    "state",  # row (t, b) of a state sequence: the state before step t
    "next",  # row (t + 1, b) of a state sequence
    "output",  # row (t, b) of the output
    "d_output",  # row (t, b) of the output's cotangent
    "d_input",  # row (t, b) of an input's gradient
    "carry",  # row b: cotangent of a state handed from step t + 1 to step t
    "d_state",  # row b: cotangent of a state handed on to step t - 1
    "tape",  # row (t, b) of a slot that lives from forward to backward
    "chunk",  # row (t, b) of a slot that lives within one chunk of one direction
    "scratch",  # row b of one step, or of one batched phase
    "scalar",  # a scalar of this phase, known to every worker
]


@dataclass(frozen=True)
class Buffer:
    """A value's location: kind of memory, and index in it (gate block, slot, scratch column)."""

    where: Where
    index: int


@dataclass(frozen=True, eq=False)
class Acc:
    """A sum of products: Σ of ``terms`` (matmul nodes), accumulated into the value ``into``."""

    into: Node
    terms: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Bundle:
    """Products joined into one GEMM: along rows (several accs) and along k (several operands)."""

    operands: tuple[Node, ...]
    accs: tuple[Acc, ...]


@dataclass(frozen=True, eq=False)
class Part:
    """Products into one gate block, then straight-line code over its units, then stores."""

    gate_block: GateBlock
    bundles: tuple[Bundle, ...]
    nodes: tuple[Node, ...]
    writes: tuple[tuple[Node, Buffer], ...]


@dataclass(frozen=True, eq=False)
class Segment:
    """``sync``: units of other workers must be complete before it, when units are split.

    ``scalars`` (reductions and arithmetic on scalars, in order) come first, then the parts.
    """

    sync: bool
    scalars: tuple[Node, ...]
    scalar_writes: tuple[tuple[Node, Buffer], ...]
    parts: tuple[Part, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every value computed in the segment, in order."""
        return (*self.scalars, *(value for part in self.parts for value in part.nodes))

    @property
    def writes(self) -> tuple[tuple[Node, Buffer], ...]:
        """Every store of the segment, in order."""
        return (*self.scalar_writes, *(write for part in self.parts for write in part.writes))


@dataclass(frozen=True, eq=False)
class Phase:
    """Segments in order; ``buffers``: where a segment reads values of other segments and phases."""

    name: str
    segments: tuple[Segment, ...]
    buffers: Mapping[Node, Buffer]
    scratch: tuple[GateBlock, ...]


@dataclass(frozen=True, eq=False)
class Sweep:
    """One direction in time: batched, loop, batched.

    Attributes:
        before, step, after: the phases.
        chunk: gate blocks of the chunk's slots.
        replay: of a backward that reads matrices per sample: one step of these states alone, run
            over each chunk from the states that were kept before it.
    """

    before: Phase
    step: Phase
    after: Phase
    chunk: tuple[GateBlock | None, ...]
    replay: Phase | None = None

    @property
    def phases(self) -> tuple[Phase, Phase, Phase]:
        """The phases in the order in which they run."""
        return self.before, self.step, self.after

    @property
    def all_phases(self) -> tuple[Phase, ...]:
        """The phases, then the replay if there is one."""
        return self.phases if self.replay is None else (*self.phases, self.replay)

    def summed(self, value: Node) -> Buffer:
        """The buffer with the rows of a sum's operand, once all phases have run."""
        buffer = self.after.buffers.get(value)
        if buffer is not None and buffer.where != "scalar":
            return buffer
        for segment in self.after.segments:  # computed in the last phase, and kept for its sum
            for stored, target in segment.writes:
                if stored is value and target.where in ("tape", "chunk"):
                    return target
        raise VerifyError(f"{value!r} is summed, but has no buffer")


@dataclass(frozen=True, eq=False)
class SlotHistory:
    """The values that live in a slot, in order (for printing)."""

    gate_block: GateBlock | None
    values: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, eq=False)
class Program:
    """The engine-independent plan of a cell.

    Attributes:
        pair, spec: the formula and the specification.
        forward, backward: the two sweeps (backward None when not training).
        tape: gate block of each slot that lives from forward to backward; None for a scalar.
        sums: sums over T·B, taken after each chunk of the backward.
        slots: the history of every slot of the tape.
        kept: taped values. hoisted, rematerialised, stored: the other cuts, for printing.
    """

    pair: Pair
    spec: Spec
    forward: Sweep
    backward: Sweep | None
    tape: tuple[GateBlock | None, ...]
    sums: tuple[Sum, ...]
    slots: tuple[SlotHistory, ...]
    kept: tuple[Node, ...]
    hoisted: tuple[Node, ...]
    rematerialised: tuple[Node, ...]
    stored: tuple[Node, ...]

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """The forward, and the backward if there is one."""
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    @property
    def overwrites_tape(self) -> bool:
        """Whether the backward writes slots of the tape."""
        if self.backward is None:
            return False
        return any(
            buffer.where == "tape"
            for phase in self.backward.phases
            for segment in phase.segments
            for _, buffer in segment.writes
        )
