"""From a graph pair to a program: cut, order, and give every value a home."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from elman.ir.graph import Node, Rate
from elman.ir.pair import Pair, sealed
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


def _lives(phases: list[_Draft], cuts: Cuts, slotted: Iterable[Node]) -> dict[Node, Life]:
    """The life of every value that needs a slot."""
    wanted = list(dict.fromkeys(slotted))
    start: dict[Node, int] = {}
    for value in wanted:
        start[value] = min(phase.written(value) for phase in phases if value in phase.writes)
    last: dict[Node, tuple[int, bool]] = {value: (start[value], False) for value in wanted}

    def read(value: Node, event: int, full: bool) -> None:
        if value in last:
            last[value] = max(last[value], (event, full))

    for phase in phases:
        for value, event, full in phase.reads():
            read(value, event, full)
    for term in cuts.sums:
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
        segments = [
            self._segment(plan, index, part, writes, homes, loop=loop)
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
        loop: bool,
    ) -> Segment:
        def stores(values: Iterable[Node]) -> tuple[tuple[Node, Home], ...]:
            found: list[tuple[Node, Home]] = []
            for value in values:
                targets = list(writes.get(value, ()))
                home = homes.get(value)
                if home is not None and home.where == "scratch":
                    targets.append(home)
                found.extend((value, target) for target in targets)
            return tuple(found)

        sync = False
        members = [*part.scalars, *(v for values in part.vectors.values() for v in values)]
        for value in members:
            for arg in full_reads(value):
                computed = arg in plan.level
                carried = loop and not computed and homes[arg].where in _LOOP_CARRIED
                sync = sync or (computed and plan.level[arg] < index) or (carried and index == 0)
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
        made = Segment(first.sync, first.scalars, tuple(scalar_writes), tuple(parts.values()))
        return (made, *segments[1:])


def _targets(*groups: Iterable[tuple[Node, Home]]) -> dict[Node, list[Home]]:
    found: dict[Node, list[Home]] = {}
    for group in groups:
        for value, home in group:
            found.setdefault(value, []).append(home)
    return found


def output_is_state(pair: Pair) -> bool:
    """Whether the output is the first state itself, so that one array serves both."""
    step = pair.step
    first = [leaf for leaf in step.states if leaf.data[0] == step.states[0].data[0]]
    return step.outputs == step.next_states[: len(first)]


def program(pair: Pair, spec: Spec, prices: Prices = BALANCED) -> Program:
    """Partition a pair: everything that is decided without an engine but with its prices."""
    cuts = partition(pair, spec, prices)
    step = pair.step
    taped_early = [v for v in cuts.tape if v.rate == Rate.INPUT]
    taped_late = [v for v in cuts.tape if v.rate == Rate.STATE]
    early_outputs = [
        (v, Home("output", i))
        for i, v in enumerate(step.outputs)
        if i not in cuts.late_outputs and not output_is_state(pair)
    ]
    late_outputs = [(step.outputs[i], Home("output", i)) for i in cuts.late_outputs]
    nexts = [(v, Home("next", i)) for i, v in enumerate(step.next_states)]

    leaves = _leaf_homes(pair, known_next=False)
    known = _leaf_homes(pair, known_next=True)
    prologue = [*cuts.hoisted, *taped_early]
    before = _Draft("forward before", 0, dict(leaves), prologue)
    loop_given = {**leaves, **dict.fromkeys(prologue)}
    loop_roots = [
        *(v for v, _ in nexts),
        *taped_late,
        *cuts.emitted,
        *(v for v, _ in early_outputs),
    ]
    loop = _Draft("forward step", 1, loop_given, loop_roots)
    kept_given = {**dict.fromkeys([*prologue, *taped_late, *cuts.emitted]), **known}
    after = _Draft("forward after", 2, kept_given, [v for v, _ in late_outputs])
    phases = [before, loop, after]

    back: list[_Draft] = []
    operands: list[Node] = []
    if spec.training:
        dy = {v: Home("d_output", i) for i, v in enumerate(pair.d_outputs)}
        given: dict[Node, Home | None] = {**dict.fromkeys(cuts.tape), **known, **dy}
        back.append(_Draft("backward before", 3, dict(given), list(cuts.redone)))
        given.update(dict.fromkeys(cuts.redone))
        carry = {v: Home("carry", i) for i, v in enumerate(pair.d_next)}
        back.append(
            _Draft(
                "backward step",
                4,
                {**given, **carry},
                [*pair.d_states, *cuts.stored],
                late_products=True,
            )
        )
        given.update(dict.fromkeys(cuts.stored))
        operands = [
            v
            for v in dict.fromkeys(v for t in cuts.sums for v in (t.left, t.right) if v is not None)
            if v not in given
        ]
        late = [*(d for _, d in cuts.d_inputs), *operands]
        back.append(_Draft("backward after", 5, dict(given), late))
        phases = [*phases, *back]

    forward_values = [*prologue, *cuts.emitted]
    backward_values = [*cuts.redone, *cuts.stored, *operands]
    lives = _lives(phases, cuts, [*cuts.tape, *forward_values, *backward_values])
    tape: list[Slot] = []
    assign(cuts.tape, lives, [], tape)
    homes = {value: Home("tape", i) for i, slot in enumerate(tape) for value, _ in slot.lives}
    chunks: list[list[Slot]] = []
    for values in (forward_values, backward_values):
        own: list[Slot] = []
        fresh = [v for v in dict.fromkeys(values) if v not in homes]
        for value, (shared, index) in assign(fresh, lives, tape, own).items():
            homes[value] = Home("tape" if shared else "chunk", index)
        chunks.append(own)

    build = _Assembler(homes)

    def kept(values: Iterable[Node]) -> list[tuple[Node, Home]]:
        return [(value, homes[value]) for value in dict.fromkeys(values)]

    forward = Sweep(
        build.phase(before, _targets(kept(prologue)), loop=False),
        build.phase(
            loop, _targets(nexts, early_outputs, kept([*taped_late, *cuts.emitted])), loop=True
        ),
        build.phase(after, _targets(late_outputs), loop=False),
        tuple(slot.atom for slot in chunks[0]),
    )
    backward = None
    if spec.training:
        carried = [(v, Home("d_state", i)) for i, v in enumerate(pair.d_states)]
        gradients = [(d, Home("d_input", i)) for i, d in cuts.d_inputs]
        backward = Sweep(
            build.phase(back[0], _targets(kept(cuts.redone)), loop=False),
            build.phase(back[1], _targets(carried, kept(cuts.stored)), loop=True),
            build.phase(back[2], _targets(gradients, kept(operands)), loop=False),
            tuple(slot.atom for slot in chunks[1]),
        )
    return Program(
        pair,
        spec,
        forward,
        backward,
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
