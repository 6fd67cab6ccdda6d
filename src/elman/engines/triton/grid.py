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

from dataclasses import dataclass

from elman.engines.triton.k_tiles import KTile, k_tiles
from elman.engines.triton.layout import TritonLayout, padded
from elman.engines.triton.loop import Loop
from elman.engines.triton.text import added, assigned, renamed
from elman.ir.graph import Node
from elman.ir.pair import loop_invariant
from elman.plan.cost import phase_nodes
from elman.plan.program import Acc, Buffer, Bundle, Phase, Segment
from elman.plan.segments import full_reads

_FEWEST = 8  # units of a block: what tensor cores take along that side
_INNER = 16  # and along which they sum


@dataclass(frozen=True)
class _PipelineStage:
    """One segment on one slice's samples.

    Attributes:
        sync: whether it waits for other programs.
        early: what is loaded a stage ahead.
        ready: what is done with it before the wait.
        lines: what follows the wait.
        late: what no other program waits for.
    """

    sync: bool
    early: list[str]
    ready: list[str]
    lines: list[str]
    late: list[str]


class Grid(Loop):
    """One direction's time loop, its units cut over ``programs``.

    Args:
        layout, phase, chunk, forward, packed: as of :class:`Loop`; all states are kept.
        units: of the largest gate block that a program has.
        heads: whether there are several, each with programs of its own.
        splits: how many parts of a product's inner dim are computed side by side.
        slices: of the samples, computed one after another.
    """

    numbers = ("i0", "i1", "T", "B", "g0")
    heads_axis = 2
    steps = "i0, i1"

    def __init__(
        self,
        layout: TritonLayout,
        phase: Phase,
        chunk: tuple[list[int], int],
        *,
        forward: bool,
        units: int,
        splits: int,
        slices: int = 1,
        packed: bool = False,
        heads: bool = False,
    ) -> None:
        all_kept = (True,) * len(layout.state_widths)
        super().__init__(
            layout, phase, chunk, forward=forward, kept_states=all_kept, packed=packed, heads=heads
        )
        self.splits, self.slices = splits, slices
        self._pipeline: list[_PipelineStage] = []
        self._early: list[str] = []
        self._ready: list[str] = []
        self._late: list[str] = []
        self._early_bases: dict[str, str] = {}
        self._is_early = False
        self.sums: set[int] = set()  # how many blocks are summed at once, somewhere
        self.scratch = layout.slots(phase.scratch)
        sizes = [layout.size(part.gate_block) for s in phase.segments for part in s.parts]
        self.programs = -(-max(sizes, default=1) // units)
        self.passes = 1 + sum(segment.sync for segment in phase.segments)
        # the interpreter repeats a step: what a program had before and what it has stored are two
        # arrays there, and one on a GPU
        self._now = False
        self._full_operands: dict[tuple[Node, KTile], str] = {}
        self._inner: dict[KTile, str] = {}
        self._split_weights: dict[tuple[Node, bool, KTile], str] = {}
        self._all: set[int] = set()
        pair = layout.program.pair
        leaves = pair.step.states if forward else pair.d_next
        # by all programs
        self._read = {arg for value in phase_nodes(phase) for arg in full_reads(value)}
        self._shared = {k for k, leaf in enumerate(leaves) if leaf in self._read}

    def _owned_size(self, size: int) -> int:
        return -(-size // self.programs)

    def block_of(self, size: int) -> int:
        """See :meth:`Body.block_of`."""
        return max(_FEWEST, 1 << (self._owned_size(size) - 1).bit_length())

    def masked(self, size: int) -> bool:
        """See :meth:`Body.masked`."""
        return True

    def indices(self, name: str, size: int) -> list[str]:
        """See :meth:`Body.indices`: those of this program."""
        offsets = f"tl.arange(0, {self.block_of(size)})[:, None]"
        return [
            f"{name} = tl.program_id(0) * {self._owned_size(size)} + {offsets}",
            f"ok_{name} = ({offsets} < {self._owned_size(size)}) & ({name} < {size})",
        ]

    def address(self, buffer: Buffer, value: Node) -> str:
        """See :meth:`Body.address`."""
        if buffer.where in ("tape", "chunk") and self._now:
            name = "tapenow" if buffer.where == "tape" else "chnow"
            row = self.layout.tape_row if buffer.where == "tape" else self.chunk[1]
            base = self._base(f"p_{name}", f"{name} + row * {row}", name)
            offsets = self.layout.tape if buffer.where == "tape" else self.chunk[0]
            return f"{base} + {offsets[buffer.index]}"
        if buffer.where == "scratch":
            offsets, row = self.scratch
            base = self._base("p_sr", f"sr + ((t & 1) * B + n) * {row}", "sr")
            return f"{base} + {offsets[buffer.index]}"
        if buffer.where in ("carry", "d_state"):
            name, step = ("p_ca", "t") if buffer.where == "carry" else ("p_cn", "t + 1")
            text = f"ca + ((({step}) & 1) * B + n) * {self.layout.carry_row}"
            return f"{self._base(name, text, 'ca')} + {self.layout.carry[buffer.index]}"
        return super().address(buffer, value)

    def store(self, buffer: Buffer, value: Node) -> None:
        """See :meth:`Body.store`; what others read in full goes to memory, and before the rest."""
        self.use(value)
        if buffer.where == "scratch" and value not in self._read:
            return  # of this program alone, who has it at hand
        carried = buffer.where in ("next", "d_state") and buffer.index in self._shared
        shared = carried or value in self._read
        self._now = True
        lines = self.lines
        if not shared:
            if buffer.where != "d_state":
                self.place(buffer, value)  # pointers are declared among what comes first
            self.lines = self._late
        super().store(buffer, value)
        if buffer.where == "scratch" or (buffer.where == "d_state" and carried):
            super(Loop, self).store(buffer, value)
        self.lines = lines
        self._now = False

    def _anywhere(self, value: Node) -> str:
        """Text of the pointers [1, samples] to a value of which all units are read."""
        self._now = True
        at = self.address(self.phase.buffers[value], value)
        self._now = False
        return at

    def segment(self, segment: Segment) -> None:
        """See :meth:`Body.segment`."""
        self.lines, self._early, self._ready, self._late = [], [], [], []
        self._early_bases = {}
        super().segment(segment)
        lines = self._early, self._ready, self.lines, self._late
        self._pipeline.append(_PipelineStage(segment.sync, *lines))

    def load(self, buffer: Buffer, value: Node) -> str:
        """See :meth:`Body.load`: a stage ahead. Nothing of this kernel wrote what is loaded
        here."""
        raw, name = self.fresh("r"), self.fresh()
        self._swap()
        text = self.loaded(buffer, value)
        self.lines.append(f"{raw} = {text}")
        self._swap()
        self._ready.append(f"{name} = {raw}.to(tl.float32)")
        return name

    def _swap(self) -> None:
        """Switch between a stage's lines and those a stage ahead."""
        self.lines, self._early = self._early, self.lines
        self._bases, self._early_bases = self._early_bases, self._bases
        self._is_early = not self._is_early

    def _base(self, name: str, text: str, *arguments: str) -> str:
        """See :meth:`Loop._base`."""
        return super()._base(f"e_{name}" if self._is_early else name, text, *arguments)

    def text(self) -> str:
        """See :meth:`Loop.text`."""
        kernel = super().text()
        return "\n\n".join([*(added(count) for count in sorted(self.sums)), kernel])

    def _samples(self) -> list[str]:
        first = f"(g0 + tl.program_id(1)) * {self.slices}"
        lines = [
            "n = (({first} + {s}) * N + tl.arange(0, N)).to(tl.int64)[None, :]",
            "live = n < B",
            "all_live = live",
        ]
        return self._sliced([line.replace("{first}", first) for line in lines])

    def _sliced(self, lines: list[str]) -> list[str]:
        """Lines of all slices; ``{s}`` in them is the slice."""
        return [
            line.replace("{s}", str(s)) for s in range(self.slices) for line in self._of(s, lines)
        ]

    def _of(self, s: int, lines: list[str]) -> list[str]:
        """Lines of one slice, with names of its own."""
        if self.slices == 1:
            return lines
        return renamed(lines, {name: f"{name}_{s}" for name in self._own_names})

    def _step(self) -> list[str]:
        pipeline, end = self._pipeline, self._step_end()
        order = [(k, s) for k in range(len(pipeline)) for s in range(self.slices)]
        head, *rows = self._step_head()
        lines = [head, *self._sliced(rows)]
        for (k, s), after in zip(order, [*order[1:], None], strict=True):
            if after is not None:
                lines += self._of(after[1], pipeline[after[0]].early)
            else:
                lines += self._ahead("i + 1", "soon")
            lines += self._of(s, pipeline[k].ready)
            if pipeline[k].sync:
                lines += self._of(s, ["if BARRIER:", f"    lib.wait(bar_at + {s}, epoch)"])
            lines += self._of(s, pipeline[k].lines)
            if pipeline[(k + 1) % len(pipeline)].sync:
                lines += self._of(s, [f"epoch += {self.programs}"])
                lines += ["if BARRIER:", f"    lib.arrive(bar_at + {s})"]
            lines += self._of(s, pipeline[k].late)
            if k == len(pipeline) - 1:
                lines += self._of(s, end)
        return [*lines, *self._of(0, [f"{raw} = {raw}_soon" for raw in self._raws])]

    @property
    def _raws(self) -> list[str]:
        """What a step loads first."""
        return [name for name in assigned(self._pipeline[0].early) if not name.startswith("e_")]

    @property
    def _own_names(self) -> set[str]:
        """What every slice has of its own."""
        names = {"n", "live", "all_live", "epoch", *self.carried}
        names |= set(assigned(self._step_head())) - {"t"}
        names |= {f"next_{index}" for index in self._next}
        for stage in self._pipeline:
            groups = (stage.early, stage.ready, stage.lines, stage.late)
            names |= {name for group in groups for name in assigned(group)}
        return names | {f"{raw}_soon" for raw in self._raws}

    def _ahead(self, index: str, mark: str) -> list[str]:
        """The first loads of a step that begins next; its names end with a mark."""
        if not self._raws:
            return []
        early = self._pipeline[0].early
        # there may be no such step: then nothing is live; its number is looked up in packed rows
        number = f"tl.minimum({index}, T - 1)" if self.packed else index
        first = [f"inside_{mark} = {index} < i1", f"i_{mark} = {number}"]
        lines = self._step_head()
        if not self.packed:
            lines.append("live = all_live")
        lines.append("live = live & inside")
        step_names = {"i", "inside", *assigned([*lines, *early])}
        ahead = [
            *first,
            *renamed([*lines, *early], {name: f"{name}_{mark}" for name in step_names}),
        ]
        return self._of(0, ahead)

    def _inner_of(self, tile: KTile) -> tuple[str, int]:
        """The name of a piece's indices [splits, units of a split], and how many splits."""
        splits = max(1, min(self.splits, tile.length // _INNER))
        each = tile.length // splits
        if tile not in self._inner:
            name = self._inner[tile] = f"k{tile.size}_{tile.start}"
            first = f"{tile.start} + tl.arange(0, {splits})[:, None] * {each}"
            self.before.append(f"{name} = {first} + tl.arange(0, {each})[None, :]")
        return self._inner[tile], splits

    def _split_weight(self, matrix: Node, transposed: bool, tile: KTile) -> str:
        """The name of this program's rows of a matrix: [splits, units, units of a split]."""
        cached = self._split_weights.get((matrix, transposed, tile))
        if cached is not None:
            return cached
        array = self.array(matrix, transposed)
        rows, columns = (self.layout.size(dim[0]) for dim in matrix.shape)
        out = columns if transposed else rows
        k, _ = self._inner_of(tile)
        u, at_k = f"{self.units(out)}[None, :, :]", f"{k}[:, None, :]"
        ok = f"ok_{self.units(out)}[None, :, :]"
        if tile.padded:
            ok = f"{ok} & ({at_k} < {tile.size})"
        at = f"{u} * {array}_r + {at_k}"
        name = self._split_weights[matrix, transposed, tile] = self.fresh("w")
        self.before.append(f"{name} = tl.load({array} + {at}, mask={ok}, other=0.0).to(DT)")
        return name

    def _split_operand(self, value: Node, tile: KTile) -> str:
        """The name of a piece of all units: [splits, units of a split, samples]."""
        if (value, tile) in self._full_operands:
            return self._full_operands[value, tile]
        k, _ = self._inner_of(tile)
        at = f"({self._anywhere(value)})[None, :, :] + {k}[:, :, None]"
        mask = "live[None, :, :]"
        if tile.padded:
            mask = f"({k} < {tile.size})[:, :, None] & {mask}"
        name = self._full_operands[value, tile] = self.fresh("o")
        self.lines.append(
            f"{name} = tl.load({at}, mask={mask}, other=0.0, cache_modifier='.cg').to(DT)"
        )
        return name

    def accumulated(self, bundle: Bundle) -> list[str]:
        """Parts of the inner dim side by side, then their sums, all at once."""
        chains = [self._chains(acc) for acc in bundle.accs]
        names = [self.fresh("a") for _ in bundle.accs]
        flat = [name for chain in chains for name in chain]
        sums = [self.fresh("a") for _ in flat]
        if len(flat) == 1 or any(len(chain) > 1 for chain in chains):
            summed = [
                f"{total} = tl.sum({name}, 0)" for total, name in zip(sums, flat, strict=True)
            ]
        else:
            self.sums.add(len(flat))
            summed = ["if INTERPRETED:"]
            pairs = list(zip(sums, flat, strict=True))
            summed += [f"    {total} = tl.sum({name}, 0)" for total, name in pairs]
            reduce = f"tl.reduce(({', '.join(flat)}), 0, added{len(flat)})"
            summed += ["else:", f"    {', '.join(sums)} = {reduce}"]
        self.lines += summed
        for name, chain in zip(names, chains, strict=True):
            chain_sums, sums = sums[: len(chain)], sums[len(chain) :]
            self.lines.append(f"{name} = {' + '.join(chain_sums)}")
        return names

    def _chains(self, acc: Acc) -> list[str]:
        """Names of blocks [splits, units, samples] whose sums are a product."""
        units = self.block_of(self.layout.width(acc.into))
        chains: dict[int, str] = {}  # what has unlike splits is summed apart
        for term in acc.terms:
            matrix, operand = term.args
            for tile in k_tiles(self.layout.width(operand)):
                _, splits = self._inner_of(tile)
                weight = self._split_weight(matrix, term.transposed, tile)
                value = self._split_operand(operand, tile)
                start = chains.get(splits, f"tl.zeros([{splits}, {units}, N], tl.float32)")
                name = chains[splits] = self.fresh("a")
                self.lines.append(
                    f"{name} = lib.dot_split({weight}, {value}, {start}, PRECISION, INTERPRETED)"
                )
        return list(chains.values())

    def all_units(self, value: Node) -> tuple[str, str | None]:
        """See :meth:`Body.all_units`; from memory, where the others' are."""
        size = self.layout.width(value)
        f = f"f{size}"
        if size not in self._all:
            self._all.add(size)
            self.before += [
                f"{f} = tl.arange(0, {padded(size)})[:, None]",
                f"ok_{f} = {f} < {size}",
            ]
        name = self.fresh("g")
        if loop_invariant(value):
            at = f"vec + {self.layout.vector(value)} + {f}"
            self.before.append(f"{name} = tl.load({at}, mask=ok_{f}, other=0.0)")
            return f"tl.broadcast_to({name}, [{padded(size)}, N])", f"ok_{f}"
        at = f"{self._anywhere(value)} + {f}"
        self.lines.append(
            f"{name} = tl.load({at}, mask=ok_{f} & live, other=0.0, cache_modifier='.cg')"
            ".to(tl.float32)"
        )
        return name, f"ok_{f}"

    def owned_units(self, text: str, value: Node) -> str:
        """See :meth:`Body.own`."""
        return f"lib.units({text}, {self.units(self.layout.width(value))})"

    def _begin(self) -> list[str]:
        self.pointers["bar"] = None
        return [
            f"bar_at = bar + (g0 + tl.program_id(1)) * {self.slices}",
            *self._sliced([*super()._begin(), "epoch = 0"]),
            *self._ahead("i0", "first"),
            *self._of(0, [f"{raw} = {raw}_first" for raw in self._raws]),
        ]

    def _end(self) -> list[str]:
        return self._sliced(super()._end())
