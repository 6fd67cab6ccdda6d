"""Build a program: partition a graph pair, order each phase, assign every value a buffer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from elman.ir.graph import Node, Rate
from elman.ir.pair import Pair, Sum, loop_invariant
from elman.ir.types import GateBlock, is_matrix
from elman.plan.partition import Cuts, partition
from elman.plan.prices import BALANCED, Prices
from elman.plan.program import Buffer, Part, Phase, Program, Segment, SlotHistory, Sweep
from elman.plan.segments import SegmentDraft, accumulates, draft, full_reads
from elman.plan.slots import Life, Slot, assign, gate_block_of
from elman.plan.spec import Spec

_EVENTS = 1000  # event numbers of a phase, more than any phase has segments
_SUMS = 7 * _EVENTS  # sums run after all phases, of which a program has seven
_READABLE = ("next", "tape", "chunk")
_OF_PHASE = ("scratch", "scalar")  # buffers of values that later segments read


@dataclass(eq=False)
class _PhaseDraft:
    """A phase before slots are assigned: available values, required values, segments."""

    name: str
    place: int
    available: dict[Node, Buffer | None]
    roots: list[Node]
    without: Collection[str]
    late_products: bool = False

    def __post_init__(self) -> None:
        computed = [root for root in self.roots if not loop_invariant(root)]
        drafted = draft(
            computed, self.available, late_products=self.late_products, without=self.without
        )
        self.segments, self.level = drafted.segments, drafted.level
        self.repeated = drafted.repeated

    @property
    def writes(self) -> Collection[Node]:
        """Values that this phase computes or copies (a carry kept for the epilogue, a
        loop-invariant operand of a sum)."""
        copied = [v for v in self.roots if self.available.get(v) is not None or loop_invariant(v)]
        return {*self.level, *copied}

    def written(self, value: Node) -> int:
        """Event number at which this phase computes or copies a value."""
        return self.place * _EVENTS + self.level.get(value, 0)

    def reads(self) -> Iterable[tuple[Node, int, bool]]:
        """(value, event, all units?) of every read of a value in memory."""
        for reader, level in self.level.items():
            full, last = full_reads(reader), max(self.repeated.get(reader, (level,)))
            for arg in reader.args:
                yield arg, self.place * _EVENTS + last, arg in full
        for root in self.roots:
            if root in self.available:
                yield root, self.place * _EVENTS, False


def _leaf_buffers(pair: Pair, *, known_next: bool) -> dict[Node, Buffer | None]:
    """Buffers of leaves, which are in memory before any phase."""
    step = pair.step
    buffers: dict[Node, Buffer | None] = {}
    if known_next:
        buffers.update(
            {v: Buffer("next", i) for i, v in enumerate(step.next_states) if not loop_invariant(v)}
        )
    buffers.update({v: Buffer("state", i) for i, v in enumerate(step.states)})
    buffers.update({v: Buffer("input", i) for i, v in enumerate(step.inputs)})
    return buffers


def _lives(
    phases: Iterable[_PhaseDraft], sums: Iterable[Sum], slotted: Iterable[Node]
) -> dict[Node, Life]:
    """Lifetimes of the values that need a slot.

    A read of all units, or of a scalar, lasts to the end of its phase: another worker may still
    have to do it.
    """
    values = list(dict.fromkeys(slotted))
    start: dict[Node, int] = {}
    for value in values:
        start[value] = min(phase.written(value) for phase in phases if value in phase.writes)
    last: dict[Node, tuple[int, bool]] = {value: (start[value], False) for value in values}

    def read(value: Node, event: int, full: bool) -> None:
        if value in last:
            full = full or not value.shape
            end = (event // _EVENTS + 1) * _EVENTS - 1 if full else event
            last[value] = max(last[value], (end, full))

    for phase in phases:
        for value, event, full in phase.reads():
            read(value, event, full)
    for term in sums:
        for value in (term.left, term.right):
            if value is not None:
                read(value, _SUMS, True)
    return {value: Life(start[value], *last[value], accumulates(value)) for value in values}


class _Assembler:
    """Turns drafts into phases once slots are known."""

    def __init__(self, slots: Mapping[Node, Buffer]) -> None:
        self.slots = slots

    def phase(self, plan: _PhaseDraft, writes: Mapping[Node, list[Buffer]], *, loop: bool) -> Phase:
        buffers: dict[Node, Buffer] = {
            value: buffer or self.slots[value] for value, buffer in plan.available.items()
        }
        scratch: list[GateBlock] = []
        self._place_computed(plan, writes, buffers, scratch)
        # A step that reads all units of the previous step's carry begins with a barrier, however
        # late it reads: no worker may write the next carry while another still reads this one. Of
        # states this holds in the forward and the replay alone, which write them.
        changed = {b.index for targets in writes.values() for b in targets if b.where == "next"}
        carried = loop and any(
            (arg in full_reads(value) or not arg.shape)
            and arg in buffers
            and (
                buffers[arg].where == "carry"
                or (buffers[arg].where == "state" and buffers[arg].index in changed)
            )
            for value in plan.level
            for arg in value.args
        )
        segments = [
            self._segment(plan, index, part, writes, buffers, carried=carried)
            for index, part in enumerate(plan.segments)
        ]
        return Phase(plan.name, self._with_copies(plan, segments, writes), buffers, tuple(scratch))

    def _place_computed(
        self,
        plan: _PhaseDraft,
        writes: Mapping[Node, list[Buffer]],
        buffers: dict[Node, Buffer],
        scratch: list[GateBlock],
    ) -> None:
        """Assign a buffer to each value that is read in a later segment, or in full."""
        needs: set[Node] = set()
        for reader, level in plan.level.items():
            last = max(plan.repeated.get(reader, (level,)))
            for arg in reader.args:
                if arg in plan.level and arg not in plan.repeated:
                    if arg in full_reads(reader) or plan.level[arg] < last:
                        needs.add(arg)
        scalars = 0
        for value in plan.level:
            if not value.shape:
                buffers[value] = Buffer("scalar", scalars)
                scalars += 1
            elif value in needs:
                readable = [buffer for buffer in writes.get(value, ()) if buffer.where in _READABLE]
                if readable:  # it is written to a row that later segments can read: no copy
                    buffers[value] = readable[0]
                else:
                    buffers[value] = Buffer("scratch", len(scratch))
                    scratch.append(value.shape[0][0])

    def _segment(
        self,
        plan: _PhaseDraft,
        index: int,
        draft: SegmentDraft,
        writes: Mapping[Node, list[Buffer]],
        buffers: Mapping[Node, Buffer],
        *,
        carried: bool,
    ) -> Segment:
        def stores(
            values: Iterable[Node], of_phase: Collection[str] = ("scratch",)
        ) -> tuple[tuple[Node, Buffer], ...]:
            pairs: list[tuple[Node, Buffer]] = []
            for value in values:
                targets = list(writes.get(value, ()))
                buffer = buffers.get(value)
                if buffer is not None and buffer.where in of_phase:
                    targets.append(buffer)
                pairs.extend((value, target) for target in targets)
            return tuple(pairs)

        sync = carried and index == 0
        computed = [*draft.scalars, *(v for values in draft.vectors.values() for v in values)]
        for value in computed:
            for arg in full_reads(value):
                sync = sync or plan.level.get(arg, index) < index
        loops = tuple(
            Part(gate_block, draft.bundles[gate_block], values, stores(values, _OF_PHASE))
            for gate_block, values in draft.vectors.items()
        )
        return Segment(sync, draft.scalars, stores(draft.scalars), loops)

    def _with_copies(
        self, plan: _PhaseDraft, segments: list[Segment], writes: Mapping[Node, list[Buffer]]
    ) -> tuple[Segment, ...]:
        """Add the stores of values that the phase does not compute: copies of available or
        loop-invariant values."""
        copies = [
            (value, buffer)
            for value in dict.fromkeys(plan.roots)
            if value not in plan.level
            for buffer in writes.get(value, ())
            if plan.available.get(value, buffer) is not None or buffer != self.slots.get(value)
        ]
        if not copies:
            return tuple(segments)
        first = segments[0] if segments else Segment(False, (), (), ())
        loops = {loop.gate_block: loop for loop in first.parts}
        scalar_writes = list(first.scalar_writes)
        for value, buffer in copies:
            gate_block = gate_block_of(value)
            if gate_block is None:
                scalar_writes.append((value, buffer))
                continue
            old = loops.get(gate_block, Part(gate_block, (), (), ()))
            loops[gate_block] = Part(
                gate_block, old.bundles, old.nodes, (*old.writes, (value, buffer))
            )
        segment = Segment(first.sync, first.scalars, tuple(scalar_writes), tuple(loops.values()))
        return (segment, *segments[1:])


def _targets(*groups: Iterable[tuple[Node, Buffer]]) -> dict[Node, list[Buffer]]:
    by_value: dict[Node, list[Buffer]] = {}
    for group in groups:
        for value, buffer in group:
            by_value.setdefault(value, []).append(buffer)
    return by_value


def output_is_state(pair: Pair) -> bool:
    """Whether the output is the first state itself, so that one array serves both."""
    step = pair.step
    if not step.states:
        return False
    first = [leaf for leaf in step.states if leaf.data[0] == step.states[0].data[0]]
    if is_matrix(first[0]):
        return False  # matrix states are kept once per chunk, outputs at every step
    return step.outputs == step.next_states[: len(first)]


@dataclass(frozen=True, eq=False)
class _Direction:
    """A direction before slots are assigned.

    Attributes:
        phases: before, step, after.
        fixed: per phase, values with the buffers they must be written to.
        slotted: per phase, values to be written to a slot.
        sums: sums whose operands are read after the last phase.
        replay: phase that recomputes the matrices per sample that a backward reads, and their
            buffers.
    """

    phases: tuple[_PhaseDraft, _PhaseDraft, _PhaseDraft]
    fixed: tuple[list[tuple[Node, Buffer]], ...]
    slotted: tuple[list[Node], ...]
    sums: tuple[Sum, ...] = ()
    replay: tuple[_PhaseDraft, list[tuple[Node, Buffer]]] | None = None

    @property
    def all_phases(self) -> list[_PhaseDraft]:
        """In the order in which they run."""
        before, step, after = self.phases
        return [before, *([self.replay[0]] if self.replay else []), step, after]


def _forward(pair: Pair, cuts: Cuts, without: Collection[str]) -> _Direction:
    step = pair.step
    early = () if "hoisting" in without else (Rate.INPUT,)
    early_tape = [v for v in cuts.tape if v.rate in early]
    late_tape = [v for v in cuts.tape if v.rate not in early]
    prologue = [*cuts.hoisted, *early_tape]
    looped = [*late_tape, *cuts.emitted]
    nexts = [(v, Buffer("next", i)) for i, v in enumerate(step.next_states)]
    outputs = [
        (v, Buffer("output", i))
        for i, v in enumerate(step.outputs)
        if i not in cuts.late_outputs and not output_is_state(pair)
    ]
    late_outputs = [(step.outputs[i], Buffer("output", i)) for i in cuts.late_outputs]
    leaves = _leaf_buffers(pair, known_next=False)
    roots = [*(v for v, _ in nexts), *looped, *(v for v, _ in outputs)]
    readable = {**dict.fromkeys([*prologue, *looped]), **_leaf_buffers(pair, known_next=True)}
    return _Direction(
        (
            _PhaseDraft("forward before", 0, dict(leaves), prologue, without),
            _PhaseDraft("forward step", 1, {**leaves, **dict.fromkeys(prologue)}, roots, without),
            _PhaseDraft("forward after", 2, readable, [v for v, _ in late_outputs], without),
        ),
        ([], [*nexts, *outputs], late_outputs),
        (prologue, looped, []),
    )


def _backward(pair: Pair, cuts: Cuts, without: Collection[str]) -> _Direction:
    leaf_buffers = _leaf_buffers(pair, known_next=True)
    available: dict[Node, Buffer | None] = {
        **dict.fromkeys(cuts.tape),
        **leaf_buffers,
        **{v: Buffer("d_output", i) for i, v in enumerate(pair.d_outputs)},
    }
    rematerialised = list(cuts.rematerialised)
    before = _PhaseDraft("backward before", 3, dict(available), rematerialised, without)
    available.update(dict.fromkeys(cuts.rematerialised))
    carry = {v: Buffer("carry", i) for i, v in enumerate(pair.d_next)}
    roots = [*pair.d_states, *cuts.stored]
    step_buffers = {**available, **carry}
    step = _PhaseDraft("backward step", 5, step_buffers, roots, without, late_products=True)
    replay = _replay(pair, step, available, without)
    available.update(dict.fromkeys(cuts.stored))
    read = dict.fromkeys(v for t in cuts.sums for v in (t.left, t.right) if v is not None)
    operands = [v for v in read if v not in available]
    late = [*(d for _, d in cuts.d_inputs), *operands]
    return _Direction(
        (before, step, _PhaseDraft("backward after", 6, dict(available), late, without)),
        (
            [],
            [(v, Buffer("d_state", i)) for i, v in enumerate(pair.d_states)],
            [(d, Buffer("d_input", i)) for i, d in cuts.d_inputs],
        ),
        (rematerialised, list(cuts.stored), operands),
        cuts.sums,
        replay,
    )


def _replay(
    pair: Pair, step: _PhaseDraft, available: Mapping[Node, Buffer | None], without: Collection[str]
) -> tuple[_PhaseDraft, list[tuple[Node, Buffer]]] | None:
    """The phase that recomputes a chunk's matrices per sample, if the backward reads them, and the
    buffers it writes."""
    states, nexts = pair.step.states, pair.step.next_states
    read = {arg for value in step.level for arg in value.args if is_matrix(arg)}
    if read.isdisjoint((*states, *nexts)):
        return None
    writes = [
        (value, Buffer("next", index))
        for index, value in enumerate(nexts)
        if is_matrix(value) and value is not states[index]
    ]
    roots = [value for value, _ in writes]
    readable = {v: buffer for v, buffer in available.items() if v in states or v not in roots}
    return _PhaseDraft("backward replay", 4, readable, roots, without), writes


def _sweep(direction: _Direction, taped: Mapping[Node, Buffer], tape: list[Slot]) -> Sweep:
    """Assign slots to the values of one direction, reusing the tape's where they fit.

    ``taped`` holds the taped values alone: any other value in the tape's slots belongs to one
    direction, and the other may compute the same value into another slot.
    """
    buffers = dict(taped)
    values = dict.fromkeys(value for group in direction.slotted for value in group)
    fresh = [value for value in values if value not in buffers]
    chunk_slots: list[Slot] = []
    placed = assign(fresh, _lives(direction.all_phases, direction.sums, fresh), tape, chunk_slots)
    for value, (shared, index) in placed.items():
        buffers[value] = Buffer("tape" if shared else "chunk", index)
    build = _Assembler(buffers)
    before, step, after = (
        build.phase(
            phase,
            _targets(fixed, [(value, buffers[value]) for value in dict.fromkeys(slotted)]),
            loop=phase is direction.phases[1],
        )
        for phase, fixed, slotted in zip(
            direction.phases, direction.fixed, direction.slotted, strict=True
        )
    )
    chunk = tuple(slot.gate_block for slot in chunk_slots)
    if direction.replay is None:
        return Sweep(before, step, after, chunk)
    replay, writes = direction.replay
    return Sweep(before, step, after, chunk, build.phase(replay, _targets(writes), loop=True))


def program(pair: Pair, spec: Spec, prices: Prices = BALANCED) -> Program:
    """Partition a pair and schedule its phases; the engine contributes only its prices."""
    cuts = partition(pair, spec, prices)
    without = spec.options.without
    directions = [_forward(pair, cuts, without)]
    if spec.training:
        directions.append(_backward(pair, cuts, without))
    phases = [phase for direction in directions for phase in direction.all_phases]
    tape: list[Slot] = []
    # the tape first: its slots are then free for values of either direction
    assign(cuts.tape, _lives(phases, cuts.sums, cuts.tape), [], tape)
    taped = {value: Buffer("tape", i) for i, slot in enumerate(tape) for value, _ in slot.lives}
    sweeps = [_sweep(direction, taped, tape) for direction in directions]
    return Program(
        pair,
        spec,
        sweeps[0],
        sweeps[1] if spec.training else None,
        tuple(slot.gate_block for slot in tape),
        cuts.sums,
        tuple(SlotHistory(slot.gate_block, tuple(_history(slot))) for slot in tape),
        cuts.tape,
        cuts.hoisted,
        cuts.rematerialised,
        cuts.stored,
    )


_PHASES = ("before", "step", "after", "remat", "replay", "back", "sums")


def _history(slot: Slot) -> Iterable[tuple[str, Node]]:
    for value, life in sorted(slot.lives, key=lambda item: item[1].start):
        yield _PHASES[life.start // _EVENTS], value
