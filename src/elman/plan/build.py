"""From a graph pair to a program: cut, order, and give every value a home."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from elman.ir.graph import Node, Rate
from elman.ir.pair import Pair, Sum, sealed
from elman.ir.types import Atom
from elman.plan.partition import Cuts, partition
from elman.plan.prices import BALANCED, Prices
from elman.plan.program import Columns, Home, Part, Phase, Program, Segment, Sweep
from elman.plan.segments import Draft, draft, full_reads
from elman.plan.slots import Life, Slot, assign, atom_of
from elman.plan.spec import Spec

_EVENTS = 1000
_SUMS = 6 * _EVENTS
_READABLE = ("next", "tape", "chunk")
_LOOP_CARRIED = ("state", "carry")


@dataclass(eq=False)
class _Draft:
    """One phase on its way: what it is given, what it has to write, how it is ordered."""

    name: str
    place: int
    given: dict[Node, Home | None]
    roots: list[Node]
    late_products: bool = False

    def __post_init__(self) -> None:
        computed = [root for root in self.roots if not sealed(root)]
        self.segments, self.level = draft(computed, self.given, late_products=self.late_products)

    @property
    def writes(self) -> Collection[Node]:
        """What this phase computes, and what it copies: a carry kept for the epilogue."""
        copied = [v for v in self.roots if self.given.get(v) is not None]
        return {*self.level, *copied}

    def written(self, value: Node) -> int:
        """When this phase computes or copies a value."""
        return self.place * _EVENTS + self.level.get(value, 0)

    def reads(self) -> Iterable[tuple[Node, int, bool]]:
        """(value, event, all units?) of every read of a value in memory."""
        for reader, level in self.level.items():
            full = full_reads(reader)
            for arg in reader.args:
                yield arg, self.place * _EVENTS + level, arg in full
        for root in self.roots:
            if root in self.given:
                yield root, self.place * _EVENTS, False


def _leaf_homes(pair: Pair, *, known_next: bool) -> dict[Node, Home | None]:
    """Values that lie in memory before a phase begins, whatever was decided."""
    step = pair.step
    homes: dict[Node, Home | None] = {}
    if known_next:
        homes.update({v: Home("next", i) for i, v in enumerate(step.next_states) if not sealed(v)})
    homes.update({v: Home("state", i) for i, v in enumerate(step.states)})
    homes.update({v: Home("input", i) for i, v in enumerate(step.inputs)})
    return homes


def _lives(
    phases: Iterable[_Draft], sums: Iterable[Sum], slotted: Iterable[Node]
) -> dict[Node, Life]:
    """The life of every value that needs a slot, as far as these phases write and read it.

    A read of all units, or of a scalar, lasts to the end of its phase: another worker may be late.
    """
    wanted = list(dict.fromkeys(slotted))
    start: dict[Node, int] = {}
    for value in wanted:
        start[value] = min(phase.written(value) for phase in phases if value in phase.writes)
    last: dict[Node, tuple[int, bool]] = {value: (start[value], False) for value in wanted}

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
    return {value: Life(start[value], *last[value]) for value in wanted}


class _Assembler:
    """Turns drafts into phases once slots are known."""

    def __init__(self, slots: Mapping[Node, Home]) -> None:
        self.slots = slots

    def phase(self, plan: _Draft, writes: Mapping[Node, list[Home]], *, loop: bool) -> Phase:
        homes: dict[Node, Home] = {
            value: home or self.slots[value] for value, home in plan.given.items()
        }
        scratch: list[Atom] = []
        self._place_computed(plan, writes, homes, scratch)
        # A step that reads all units of what the step before wrote begins with a meeting, however
        # late it reads: nobody may write the next carry while another still reads this one.
        carried = loop and any(
            (arg in full_reads(value) or not arg.shape)
            and arg in homes
            and homes[arg].where in _LOOP_CARRIED
            for value in plan.level
            for arg in value.args
        )
        segments = [
            self._segment(plan, index, part, writes, homes, carried=carried)
            for index, part in enumerate(plan.segments)
        ]
        return Phase(plan.name, self._with_copies(plan, segments, writes), homes, tuple(scratch))

    def _place_computed(
        self,
        plan: _Draft,
        writes: Mapping[Node, list[Home]],
        homes: dict[Node, Home],
        scratch: list[Atom],
    ) -> None:
        """Give a home to what is read in a later segment, or in full."""
        needs: set[Node] = set()
        for reader, level in plan.level.items():
            for arg in reader.args:
                if arg in plan.level and (arg in full_reads(reader) or plan.level[arg] < level):
                    needs.add(arg)
        scalars = 0
        for value in plan.level:
            if not value.shape:
                homes[value] = Home("scalar", scalars)
                scalars += 1
            elif value in needs:
                readable = [home for home in writes.get(value, ()) if home.where in _READABLE]
                if readable:
                    homes[value] = readable[0]
                else:
                    homes[value] = Home("scratch", len(scratch))
                    scratch.append(value.shape[0][0])

    def _segment(
        self,
        plan: _Draft,
        index: int,
        part: Draft,
        writes: Mapping[Node, list[Home]],
        homes: Mapping[Node, Home],
        *,
        carried: bool,
    ) -> Segment:
        def stores(values: Iterable[Node]) -> tuple[tuple[Node, Home], ...]:
            pairs: list[tuple[Node, Home]] = []
            for value in values:
                targets = list(writes.get(value, ()))
                home = homes.get(value)
                if home is not None and home.where == "scratch":
                    targets.append(home)
                pairs.extend((value, target) for target in targets)
            return tuple(pairs)

        sync = carried and index == 0
        members = [*part.scalars, *(v for values in part.vectors.values() for v in values)]
        for value in members:
            for arg in full_reads(value):
                sync = sync or plan.level.get(arg, index) < index
        parts = tuple(
            Part(atom, part.bundles[atom], values, stores(values))
            for atom, values in part.vectors.items()
        )
        return Segment(sync, part.scalars, stores(part.scalars), parts)

    def _with_copies(
        self, plan: _Draft, segments: list[Segment], writes: Mapping[Node, list[Home]]
    ) -> tuple[Segment, ...]:
        """Add the stores of values that the phase does not compute: copies of given or sealed
        ones."""
        copies = [
            (value, home)
            for value in dict.fromkeys(plan.roots)
            if value not in plan.level
            for home in writes.get(value, ())
            if plan.given.get(value, home) is not None or home != self.slots.get(value)
        ]
        if not copies:
            return tuple(segments)
        first = segments[0] if segments else Segment(False, (), (), ())
        parts = {part.atom: part for part in first.parts}
        scalar_writes = list(first.scalar_writes)
        for value, home in copies:
            atom = atom_of(value)
            if atom is None:
                scalar_writes.append((value, home))
                continue
            old = parts.get(atom, Part(atom, (), (), ()))
            parts[atom] = Part(atom, old.bundles, old.nodes, (*old.writes, (value, home)))
        segment = Segment(first.sync, first.scalars, tuple(scalar_writes), tuple(parts.values()))
        return (segment, *segments[1:])


def _targets(*groups: Iterable[tuple[Node, Home]]) -> dict[Node, list[Home]]:
    by_value: dict[Node, list[Home]] = {}
    for group in groups:
        for value, home in group:
            by_value.setdefault(value, []).append(home)
    return by_value


def output_is_state(pair: Pair) -> bool:
    """Whether the output is the first state itself, so that one array serves both."""
    step = pair.step
    first = [leaf for leaf in step.states if leaf.data[0] == step.states[0].data[0]]
    return step.outputs == step.next_states[: len(first)]


@dataclass(frozen=True, eq=False)
class _Way:
    """One direction on its way: three phases, what each writes where, and what needs a slot.

    Attributes:
        phases: before, step, after.
        fixed: per phase, values with the homes they must be written to.
        slotted: per phase, values to be written to a slot.
        sums: what is read of them at the very end.
    """

    phases: tuple[_Draft, _Draft, _Draft]
    fixed: tuple[list[tuple[Node, Home]], ...]
    slotted: tuple[list[Node], ...]
    sums: tuple[Sum, ...] = ()


def _forward(pair: Pair, cuts: Cuts) -> _Way:
    step = pair.step
    early_tape = [v for v in cuts.tape if v.rate == Rate.INPUT]
    late_tape = [v for v in cuts.tape if v.rate == Rate.STATE]
    prologue = [*cuts.hoisted, *early_tape]
    looped = [*late_tape, *cuts.emitted]
    nexts = [(v, Home("next", i)) for i, v in enumerate(step.next_states)]
    outputs = [
        (v, Home("output", i))
        for i, v in enumerate(step.outputs)
        if i not in cuts.late_outputs and not output_is_state(pair)
    ]
    late_outputs = [(step.outputs[i], Home("output", i)) for i in cuts.late_outputs]
    leaves = _leaf_homes(pair, known_next=False)
    roots = [*(v for v, _ in nexts), *looped, *(v for v, _ in outputs)]
    kept = {**dict.fromkeys([*prologue, *looped]), **_leaf_homes(pair, known_next=True)}
    return _Way(
        (
            _Draft("forward before", 0, dict(leaves), prologue),
            _Draft("forward step", 1, {**leaves, **dict.fromkeys(prologue)}, roots),
            _Draft("forward after", 2, kept, [v for v, _ in late_outputs]),
        ),
        ([], [*nexts, *outputs], late_outputs),
        (prologue, looped, []),
    )


def _backward(pair: Pair, cuts: Cuts) -> _Way:
    available: dict[Node, Home | None] = {
        **dict.fromkeys(cuts.tape),
        **_leaf_homes(pair, known_next=True),
        **{v: Home("d_output", i) for i, v in enumerate(pair.d_outputs)},
    }
    before = _Draft("backward before", 3, dict(available), list(cuts.redone))
    available.update(dict.fromkeys(cuts.redone))
    carry = {v: Home("carry", i) for i, v in enumerate(pair.d_next)}
    roots = [*pair.d_states, *cuts.stored]
    step = _Draft("backward step", 4, {**available, **carry}, roots, late_products=True)
    available.update(dict.fromkeys(cuts.stored))
    read = dict.fromkeys(v for t in cuts.sums for v in (t.left, t.right) if v is not None)
    operands = [v for v in read if v not in available]
    late = [*(d for _, d in cuts.d_inputs), *operands]
    return _Way(
        (before, step, _Draft("backward after", 5, dict(available), late)),
        (
            [],
            [(v, Home("d_state", i)) for i, v in enumerate(pair.d_states)],
            [(d, Home("d_input", i)) for i, d in cuts.d_inputs],
        ),
        (list(cuts.redone), list(cuts.stored), operands),
        cuts.sums,
    )


def _sweep(way: _Way, taped: Mapping[Node, Home], tape: list[Slot]) -> Sweep:
    """Give the values of one direction slots, in the tape's where they fit, and assemble it.

    ``taped`` holds the taped values alone: what else lives in the tape's slots belongs to one
    direction, and the other may compute the same value into another slot.
    """
    homes = dict(taped)
    values = dict.fromkeys(value for group in way.slotted for value in group)
    fresh = [value for value in values if value not in homes]
    chunk_slots: list[Slot] = []
    placed = assign(fresh, _lives(way.phases, way.sums, fresh), tape, chunk_slots)
    for value, (shared, index) in placed.items():
        homes[value] = Home("tape" if shared else "chunk", index)
    build = _Assembler(homes)
    before, step, after = (
        build.phase(
            phase,
            _targets(fixed, [(value, homes[value]) for value in dict.fromkeys(slotted)]),
            loop=phase is way.phases[1],
        )
        for phase, fixed, slotted in zip(way.phases, way.fixed, way.slotted, strict=True)
    )
    return Sweep(before, step, after, tuple(slot.atom for slot in chunk_slots))


def program(pair: Pair, spec: Spec, prices: Prices = BALANCED) -> Program:
    """Partition a pair: everything that is decided without an engine but with its prices."""
    cuts = partition(pair, spec, prices)
    ways = [_forward(pair, cuts)]
    if spec.training:
        ways.append(_backward(pair, cuts))
    phases = [phase for way in ways for phase in way.phases]
    tape: list[Slot] = []
    assign(cuts.tape, _lives(phases, cuts.sums, cuts.tape), [], tape)
    taped = {value: Home("tape", i) for i, slot in enumerate(tape) for value, _ in slot.lives}
    sweeps = [_sweep(way, taped, tape) for way in ways]
    return Program(
        pair,
        spec,
        sweeps[0],
        sweeps[1] if spec.training else None,
        tuple(slot.atom for slot in tape),
        cuts.sums,
        tuple(Columns(slot.atom, tuple(_history(slot))) for slot in tape),
        cuts.tape,
        cuts.hoisted,
        cuts.redone,
        cuts.stored,
    )


_PHASES = ("before", "step", "after", "redo", "back", "sums")


def _history(slot: Slot) -> Iterable[tuple[str, Node]]:
    for value, life in sorted(slot.lives, key=lambda item: item[1].start):
        yield _PHASES[life.start // _EVENTS], value
