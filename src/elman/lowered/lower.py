"""Program -> lowered directions: loop-invariant values, phases, sums over rows, gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from elman.ir.graph import Node
from elman.ir.pair import loop_invariant
from elman.lowered.invariants import lower_gradients, lower_invariants
from elman.lowered.layout import InvariantMemory, Layout, reads
from elman.lowered.phases import PhaseLowering
from elman.lowered.types import Access, Direction, Matrix, Phase, RowSum, Space
from elman.plan.program import Buffer, Program, Sweep, Where
from elman.plan.schedule import USUAL_BLOCKS, Blocks
from elman.plan.two_valued import worth_looking


@dataclass(frozen=True)
class Lowered:
    """A program as data.

    Attributes:
        layout: all offsets.
        memory: of values of weight rate.
        forward, backward: the directions; backward None where nothing is trained.
    """

    layout: Layout
    memory: InvariantMemory
    forward: Direction
    backward: Direction | None

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Forward, and backward if there is one."""
        return (self.forward,) if self.backward is None else (self.forward, self.backward)


def lower(program: Program, lanes: int, blocks: Blocks = USUAL_BLOCKS) -> Lowered:
    """Lower both directions of a program to vectors of ``lanes`` elements."""
    layout = Layout(program, lanes, blocks.conflicting_row)
    memory = InvariantMemory(layout)
    forward = DirectionLowering("forward", program.forward, layout, memory, blocks).direction()
    if program.backward is None:
        return Lowered(layout, memory, forward, None)
    memory.begin_direction()
    backward = DirectionLowering("backward", program.backward, layout, memory, blocks).direction()
    return Lowered(layout, memory, forward, backward)


def _runs_by_sample(sweep: Sweep) -> bool:
    """Whether all phases run sample by sample: one is over matrices, and none that is batched has
    products, which would have one row each."""
    parts = [part for phase in sweep.phases for segment in phase.segments for part in segment.parts]
    batched = [p for phase in (sweep.before, sweep.after) for s in phase.segments for p in s.parts]
    return any(isinstance(part.gate_block, tuple) for part in parts) and not any(
        part.bundles for part in batched
    )


class DirectionLowering:
    """Lowers one direction in time.

    Attributes:
        phases: before, step, after; a replay, if there is one.
    """

    def __init__(
        self, name: str, sweep: Sweep, layout: Layout, memory: InvariantMemory, blocks: Blocks
    ) -> None:
        self.name, self.sweep, self.layout, self.memory = name, sweep, layout, memory
        self.program: Program = layout.program
        self.chunk = layout.slots(sweep.chunk, "chunk" if name == "backward" else "")
        self.spikes = worth_looking(self.program.pair.step)
        self.sample_by_sample = _runs_by_sample(sweep) and not (
            name == "backward" and self.program.sums
        )
        self.phases = [
            PhaseLowering(
                phase,
                layout,
                memory,
                self.chunk,
                loop=self.sample_by_sample or phase in (sweep.step, sweep.replay),
                direction=name,
                gathers_always=self.gathers_always,
                spikes=self.spikes,
                blocks=blocks,
            )
            for phase in sweep.all_phases
        ]
        # one worker is at the replay, or a batched phase, of a sample while another runs its steps
        loops = [phase for phase in self.phases if phase.loop]
        row = max(phase.scratch_row for phase in loops)
        for phase in loops:
            phase.scratch_row = row

    def direction(self) -> Direction:
        """The direction, lowered in the order in which offsets are to be given."""
        phases = self.lowered_phases()
        replay = self.lowered_replay()
        backward = self.name == "backward"
        sums, targets = self._sums() if backward else ((), frozenset[Node]())
        pair, wants = self.program.pair, self.program.spec.wants
        roots = self._invariants()
        setup = lower_invariants(roots, (), self.layout, self.memory)
        finish = (
            lower_gradients(pair, wants, targets, roots, self.layout, self.memory)
            if backward
            else ()
        )
        return Direction(
            self.name,
            phases,
            tuple(setup),
            self.gathers,
            self.gathers_always,
            self.chunk[1],
            sums,
            tuple(finish),
            self.memory.vectors + self.layout.lanes,
            self.memory.matrices,
            replay,
            self.sample_by_sample,
        )

    def lowered_phases(self) -> tuple[Phase, Phase, Phase]:
        """Before, step and after as data."""
        before, step, after, *_ = self.phases
        return before.lowered("before"), step.lowered("step"), after.lowered("after")

    def lowered_replay(self) -> Phase | None:
        """The step that computes matrices again as data, if there is one."""
        return self.phases[3].lowered("replay") if self.sweep.replay else None

    def carried(self) -> list[tuple[Access, Access]]:
        """For each state, where a step finds it (its cotangent, in a backward), and leaves it."""
        before: Where = "state" if self.name == "forward" else "carry"
        after: Where = "next" if self.name == "forward" else "d_state"
        access, states = self.phases[1].access, enumerate(self.program.pair.step.states)
        return [(access(Buffer(before, k), s), access(Buffer(after, k), s)) for k, s in states]

    def summed(self, value: Node) -> Access:
        """The column of rows of a sum's operand, once all phases have run."""
        return self.phases[2].access(self.sweep.summed(value), value)

    def _invariants(self) -> list[Node]:
        """Loop-invariant values that the phases read, and computed matrices of products."""
        values: dict[Node, None] = {}
        matrices: dict[Node, None] = {}
        for phase in self.sweep.all_phases:
            for segment in phase.segments:
                for value in segment.nodes:
                    for arg in value.args[1:] if value.op == "matmul" else value.args:
                        if loop_invariant(arg) and arg.op not in ("const", "count"):
                            values[arg] = None
                for value, _ in segment.writes:
                    if loop_invariant(value) and value.op not in ("const", "count"):
                        values[value] = None
                for part in segment.parts:
                    for bundle in part.bundles:
                        for acc in bundle.accs:
                            terms = [term.args[0] for term in acc.terms]
                            matrices.update({m: None for m in terms if m.op != "weight"})
        return list(dict.fromkeys([*values, *matrices]))

    @property
    def gathers(self) -> bool:
        """Whether a batched phase reads the states that precede its rows."""
        phases = (self.sweep.before, self.sweep.after)
        return any(buffer.where == "state" for p in phases for buffer in p.buffers.values())

    @cached_property
    def gathers_always(self) -> bool:
        """Whether pass-through states with one row per sample are among them."""
        layout, batched = self.layout, (self.sweep.before, self.sweep.after)
        rows = [p.buffers[v] for p in batched for v in reads(p) if v in p.buffers]
        if self.name == "backward":
            operands = {v for term in self.program.sums for v in (term.left, term.right)}
            rows += [self.sweep.summed(value) for value in operands if value is not None]
        return any(
            buffer.where == "state" and layout.column(buffer).array in layout.held
            for buffer in rows
        )

    def _sums(self) -> tuple[tuple[RowSum, ...], frozenset[Node]]:
        """The sums over rows in the order in which they run, and targets that are summed up in the
        caller's gradients."""
        program, layout, memory = self.program, self.layout, self.memory
        pair = program.pair
        leaf_of = dict(pair.d_invariants)
        gradients = dict(zip(pair.step.weights, pair.d_weights, strict=True))
        in_place = frozenset(
            target
            for target, d in pair.d_invariants
            if gradients.get(target) is d
            and len(target.shape) == 2
            and layout.units(target, 1) % layout.lanes == 0
        )
        matrix = [term for term in program.sums if term.right is not None]
        lefts = dict.fromkeys(term.left for term in matrix)
        # all products of one left operand, then those of the next; then sums of vectors
        terms = [term for left in lefts for term in matrix if term.left is left]
        terms += [term for term in program.sums if term.right is None]
        sums: list[RowSum] = []
        begun: set[Node] = set()
        for term in terms:
            right = None if term.right is None else self.summed(term.right)
            if term.right is None:
                target = memory.vector(leaf_of[term.target])
            elif term.target in in_place:
                access = layout.weights.access(term.target, Space.D_WEIGHT)
                rows, units = layout.units(term.target), layout.units(term.target, 1)
                target = Matrix(access, rows, units)
            else:
                target = memory.matrix(leaf_of[term.target])
            spikes, first = term.right in self.spikes, term.target not in begun
            sums.append(RowSum(target, self.summed(term.left), right, first, spikes))
            begun.add(term.target)
        return tuple(sums), in_place
