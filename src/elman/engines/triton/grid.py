"""All steps in one kernel, units cut over programs that synchronise between segments.

Each program keeps the weights' rows of its own units on chip; states, and whatever a segment reads
of all units, go through memory. Programs that share samples are a group. Its samples may be cut
into slices, each with a counter of its own: after a segment a slice arrives, and before the next
one it waits, while the program computes the other slices. What a stage of a slice reads of its own
is loaded a stage ahead, even before the step. The idea is the software pipeline of G. Diamos,
"Persistent RNNs (stashing recurrent weights on-chip)", talk, Baidu SVAIL, April 2016: four stages,
kept full with a minibatch of four.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from elman.engines.triton import limits
from elman.engines.triton.body import LIVE
from elman.engines.triton.layout import KTile, TritonLayout, k_tiles, padded
from elman.engines.triton.loop import ALL_LIVE, SAMPLE, STEP, TIME, Loop
from elman.engines.triton.schedule import TritonSchedule
from elman.engines.triton.statements import (
    Code,
    Statement,
    Var,
    assign,
    code,
    defined,
    joined,
    substituted,
)
from elman.ir.graph import Node
from elman.ir.pair import loop_invariant
from elman.plan.cost import phase_nodes
from elman.plan.program import Acc, Buffer, Bundle, Segment, Sweep
from elman.plan.segments import full_reads

_EPOCH, _BARS, _INSIDE = Var("epoch"), Var("bar_at"), Var("inside")


@dataclass(frozen=True, eq=False)
class _Stage:
    """One segment on one slice's samples.

    Attributes:
        sync: whether it waits for other programs.
        early: what is loaded a stage ahead.
        ready: what is done with it before the wait.
        work: what follows the wait.
        late: what no other program waits for.
    """

    sync: bool
    early: list[Statement] = field(default_factory=list)
    ready: list[Statement] = field(default_factory=list)
    work: list[Statement] = field(default_factory=list)
    late: list[Statement] = field(default_factory=list)

    @property
    def statements(self) -> list[Statement]:
        """All of them."""
        return [*self.early, *self.ready, *self.work, *self.late]


class Grid(Loop):
    """One direction's time loop, its units cut over ``programs``.

    Args:
        layout, sweep, schedule, chunk, kept_states, packed, heads: as of :class:`Loop`.

    Attributes:
        programs: of a group.
        passes: how often the interpreter repeats a step until all programs have seen all others.
        scratch: offsets of what is shared within a step, and the length of its rows.
    """

    numbers = ("i0", "i1", "T", "B", "g0")
    heads_axis = 2
    steps = "i0, i1"

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
        super().__init__(layout, sweep, schedule, chunk, kept_states, packed=packed, heads=heads)
        self.slices, self.splits = schedule.slices, schedule.warps  # of an inner dim, one a warp
        self.scratch = layout.slots(self.phase.scratch)
        segments = self.phase.segments
        sizes = [layout.size(part.gate_block) for s in segments for part in s.parts]
        self.programs = -(-max(sizes, default=1) // schedule.units)
        self.passes = 1 + sum(segment.sync for segment in segments)
        self._stages: list[_Stage] = []
        self._sums: set[int] = set()  # how many blocks are summed at once, somewhere
        self._operands: dict[tuple[Node, KTile], Var] = {}
        self._inner: dict[KTile, tuple[Var, int]] = {}
        self._split_weights: dict[tuple[Node, bool, KTile], Var] = {}
        self._all: dict[int, tuple[Var, Var]] = {}
        # by all programs
        self._read = {arg for value in phase_nodes(self.phase) for arg in full_reads(value)}
        self._shared = {k for k, leaf in enumerate(self.handed_on) if leaf in self._read}

    def _program_size(self, size: int) -> int:
        return -(-size // self.programs)

    def block_of(self, size: int) -> int:
        """See :meth:`Body.block_of`."""
        return max(limits.GRID_UNITS, 1 << (self._program_size(size) - 1).bit_length())

    def masked(self, size: int) -> bool:
        """See :meth:`Body.masked`."""
        return True

    def indices(self, name: Var, inside: Var, size: int) -> list[Statement]:
        """See :meth:`Body.indices`: those of this program."""
        offsets, own = f"tl.arange(0, {self.block_of(size)})[:, None]", self._program_size(size)
        return [
            assign(name, f"tl.program_id(0) * {own} + {offsets}"),
            assign(inside, f"({offsets} < {own}) & ({{}} < {size})", name),
        ]

    def address(self, buffer: Buffer) -> Code:
        """See :meth:`Body.address`."""
        where = buffer.where
        if where not in ("scratch", "carry", "d_state"):
            return super().address(buffer)
        offsets, row = self.scratch
        if where != "scratch":
            offsets, row = self.layout.carry, self.layout.carry_row
        array = Var("sr" if where == "scratch" else "ca")
        step = code("({} + 1)" if where == "d_state" else "{}", TIME)
        at = code("{} + (({} & 1) * B + {}) * {}", array, step, SAMPLE, row)
        return code("{} + {}", at, offsets[buffer.index])

    def _target(self, buffer: Buffer) -> Code:
        """Where a value is stored. The interpreter repeats a step: what a program had before and
        what it has stored are two arrays there, and one on a GPU."""
        if buffer.where in ("tape", "chunk"):
            return self.slot("tapenow" if buffer.where == "tape" else "chnow", buffer)
        return self.address(buffer)

    def goes_to_memory(self, buffer: Buffer, value: Node) -> bool:
        """See :meth:`Loop.goes_to_memory`; scratch of this program alone is at hand."""
        if buffer.where == "scratch":
            return value in self._read
        if buffer.where == "d_state":
            return buffer.index in self._shared
        return super().goes_to_memory(buffer, value)

    def store(self, buffer: Buffer, value: Node) -> None:
        """See :meth:`Body.store`; what others read in full comes before the rest."""
        self.use(value)
        if buffer.where in ("next", "d_state"):
            self._next[buffer.index] = value
        if not self.goes_to_memory(buffer, value):
            return
        carried = buffer.where in ("next", "d_state") and buffer.index in self._shared
        is_read = carried or value in self._read
        statements = self.statements if is_read else self._stages[-1].late
        statements.append(self.stored(self._target(buffer), value))

    def segment(self, segment: Segment) -> None:
        """See :meth:`Body.segment`."""
        self._stages.append(_Stage(segment.sync))
        self.statements = self._stages[-1].work
        super().segment(segment)

    def load(self, buffer: Buffer, value: Node) -> Var:
        """See :meth:`Body.load`: a stage ahead. Nothing of this kernel wrote what is loaded
        here."""
        raw, name = self.fresh("r"), self.fresh()
        self._stages[-1].early.append(assign(raw, self.loaded(buffer, value)))
        self._stages[-1].ready.append(assign(name, "{}.to(tl.float32)", raw))
        return name

    def text(self) -> str:
        """See :meth:`Loop.text`."""
        kernel = super().text()
        return "\n\n".join([*(_added(count) for count in sorted(self._sums)), kernel])

    def samples(self) -> list[Statement]:
        """See :meth:`Loop.samples`."""
        first = "(g0 + tl.program_id(1)) * {} + {}"
        return [
            statement
            for s in range(self.slices)
            for statement in self._of(s, self.samples_from(code(f"({first})", self.slices, s)))
        ]

    def _of(self, s: int, statements: Iterable[Statement]) -> list[Statement]:
        """Statements of one slice, with names of its own."""
        if self.slices == 1:
            return list(statements)
        return substituted(statements, {name: f"{name}_{s}" for name in self._slice_names})

    @cached_property
    def _slice_names(self) -> list[str]:
        """Names that every slice has of its own, once all stages are written."""
        states = [var.name for var in (SAMPLE, LIVE, ALL_LIVE, _EPOCH, *self.carried)]
        stages = [statement for stage in self._stages for statement in stage.statements]
        return [*states, *defined([*self.step_head()[1:], *stages, *self.step_end()])]

    def _each(self, statements: Iterable[Statement]) -> list[Statement]:
        """Statements of every slice."""
        return [line for s in range(self.slices) for line in self._of(s, statements)]

    def step(self) -> tuple[Statement, ...]:
        """See :meth:`Loop.step`."""
        stages, end = self._stages, self.step_end()
        number, *head = self.step_head()
        order = [(k, s) for k in range(len(stages)) for s in range(self.slices)]
        lines = [number, *self._each(head)]
        for (k, s), following in zip(order, [*order[1:], None], strict=True):
            if following is not None:
                lines += self._of(following[1], stages[following[0]].early)
            else:
                lines += self._ahead("i + 1", "soon")
            lines += self._of(s, stages[k].ready)
            if stages[k].sync:
                wait = Statement(code("lib.wait({} + {}, {})", _BARS, s, _EPOCH))
                lines += self._of(s, [Statement(code("if BARRIER"), body=(wait,))])
            lines += self._of(s, stages[k].work)
            if stages[(k + 1) % len(stages)].sync:
                lines += self._of(s, [Statement(code("{}", self.programs), (_EPOCH,), "+=")])
                arrive = Statement(code("lib.arrive({} + {})", _BARS, s))
                lines.append(Statement(code("if BARRIER"), body=(arrive,)))
            lines += self._of(s, stages[k].late)
            if k == len(stages) - 1:
                lines += self._of(s, end)
        return (*lines, *self._first_loads("soon"))

    def _ahead(self, number: str, mark: str) -> list[Statement]:
        """The first loads of a step that begins next; its names end with a mark."""
        early = self._stages[0].early
        if not early:
            return []
        # there may be no such step: then nothing is live; its number is looked up in packed rows
        clamped = f"tl.minimum({number}, T - 1)" if self.packed else number
        head = [assign(_INSIDE, f"{number} < i1"), assign(STEP, clamped), *self.step_head()]
        if not self.packed:
            head.append(assign(LIVE, "{}", ALL_LIVE))
        head.append(assign(LIVE, "{} & {}", LIVE, _INSIDE))
        ahead = [*head, *early]
        return self._of(0, substituted(ahead, {name: f"{name}_{mark}" for name in defined(ahead)}))

    def _first_loads(self, mark: str) -> list[Statement]:
        """Take what was loaded ahead."""
        names = defined(self._stages[0].early)
        return self._of(0, [assign(Var(name), "{}", Var(f"{name}_{mark}")) for name in names])

    def _inner_of(self, tile: KTile) -> tuple[Var, int]:
        """A piece's indices [splits, units of a split], and how many splits."""
        if tile not in self._inner:
            splits = max(1, min(self.splits, tile.length // limits.GRID_INNER))
            each, name = tile.length // splits, Var(f"k{tile.size}_{tile.start}")
            first = f"{tile.start} + tl.arange(0, {splits})[:, None] * {each}"
            self.before.append(assign(name, f"{first} + tl.arange(0, {each})[None, :]"))
            self._inner[tile] = name, splits
        return self._inner[tile]

    def _split_weight(self, matrix: Node, transposed: bool, tile: KTile) -> Var:
        """This program's rows of a matrix: [splits, units, units of a split]."""
        place = matrix, transposed, tile
        if place not in self._split_weights:
            array, stride = self.array(matrix, transposed)
            units, mask = self._indices(self.shape(matrix, transposed)[0])
            k = self._inner_of(tile)[0]
            inside = code("{}[None, :, :]", mask)
            if tile.padded:
                inside = code("{} & ({}[:, None, :] < {})", inside, k, tile.size)
            at = code("{} + {}[None, :, :] * {} + {}[:, None, :]", array, units, stride, k)
            name = self._split_weights[place] = self.fresh("w")
            load = "tl.load({}, mask={}, other=0.0).to(DT)"
            self.before.append(assign(name, load, at, inside))
        return self._split_weights[place]

    def _split_operand(self, value: Node, tile: KTile) -> Var:
        """A piece of all units: [splits, units of a split, samples]."""
        if (value, tile) not in self._operands:
            k = self._inner_of(tile)[0]
            row = self._target(self.phase.buffers[value])
            mask = code("{}[None, :, :]", LIVE)
            if tile.padded:
                mask = code("({} < {})[:, :, None] & {}", k, tile.size, mask)
            at = code("({})[None, :, :] + {}[:, :, None]", row, k)
            load = "tl.load({}, mask={}, other=0.0, cache_modifier='.cg').to(DT)"
            self._operands[value, tile] = self.define(load, at, mask, letter="o")
        return self._operands[value, tile]

    def accumulated(self, bundle: Bundle) -> list[Var]:
        """Parts of the inner dim side by side, then their sums, all at once."""
        chains = [self._chains(acc) for acc in bundle.accs]
        flat = [name for chain in chains for name in chain]
        sums = {name: self.fresh("a") for name in flat}
        one_by_one = [assign(total, "tl.sum({}, 0)", name) for name, total in sums.items()]
        if len(flat) == 1 or any(len(chain) > 1 for chain in chains):
            self.statements += one_by_one
        else:
            self._sums.add(len(flat))
            at_once = code("tl.reduce(({}), 0, added{})", joined(flat), len(flat))
            self.statements += [
                Statement(code("if INTERPRETED"), body=tuple(one_by_one)),
                Statement(code("else"), body=(Statement(at_once, tuple(sums.values())),)),
            ]
        return [
            self.define(joined([sums[name] for name in chain], " + "), letter="a")
            for chain in chains
        ]

    def _chains(self, acc: Acc) -> list[Var]:
        """Blocks [splits, units, samples] whose sums are a product."""
        units = self.block_of(self.layout.width(acc.into))
        chains: dict[int, Var] = {}  # what has unlike splits is summed apart
        for term in acc.terms:
            matrix, operand = term.args
            for tile in k_tiles(self.layout.width(operand)):
                _, splits = self._inner_of(tile)
                weight = self._split_weight(matrix, term.transposed, tile)
                value = self._split_operand(operand, tile)
                zeros = code("tl.zeros([{}, {}, N], tl.float32)", splits, units)
                call = "lib.dot_split({}, {}, {}, PRECISION, INTERPRETED)"
                start = chains.get(splits, zeros)
                chains[splits] = self.define(call, weight, value, start, letter="a")
        return list(chains.values())

    def all_units(self, value: Node) -> tuple[Code, Var | None]:
        """See :meth:`Body.all_units`; from memory, where the others' are."""
        size = self.layout.width(value)
        if size not in self._all:
            units, mask = self._all[size] = Var(f"f{size}"), Var(f"ok_f{size}")
            self.before += [
                assign(units, "tl.arange(0, {})[:, None]", padded(size)),
                assign(mask, "{} < {}", units, size),
            ]
        units, mask = self._all[size]
        if loop_invariant(value):
            name = self.fresh("g")
            at = code("{} + {} + {}", Var("vec"), self.layout.vectors[value], units)
            self.before.append(assign(name, "tl.load({}, mask={}, other=0.0)", at, mask))
            return code("tl.broadcast_to({}, [{}, N])", name, padded(size)), mask
        at = code("{} + {}", self._target(self.phase.buffers[value]), units)
        load = "tl.load({}, mask={} & {}, other=0.0, cache_modifier='.cg').to(tl.float32)"
        return code("{}", self.define(load, at, mask, LIVE, letter="g")), mask

    def program_units(self, all_units: Code, value: Node) -> Code:
        """See :meth:`Body.program_units`."""
        return code("lib.units({}, {})", all_units, self.units(self.layout.width(value)))

    def begin(self) -> list[Statement]:
        """See :meth:`Loop.begin`; loads of the first step too."""
        bars = code("{} + (g0 + tl.program_id(1)) * {}", Var("bar"), self.slices)
        return [
            assign(_BARS, bars),
            *self._each([*super().begin(), assign(_EPOCH, "0")]),
            *self._ahead("i0", "first"),
            *self._first_loads("first"),
        ]

    def end(self) -> list[Statement]:
        """See :meth:`Loop.end`."""
        return self._each(super().end())


def _added(count: int) -> str:
    """A function that adds so many blocks to so many others, one by one."""
    first, second = ([f"{letter}{k}" for k in range(count)] for letter in "ab")
    sums = [f"{a} + {b}" for a, b in zip(first, second, strict=True)]
    arguments = ", ".join([*first, *second])
    return f"@triton.jit\ndef added{count}({arguments}):\n    return {', '.join(sums)}\n"
