"""All steps in one kernel, units cut over programs that meet between segments (K3).

Each program keeps the weights' rows of its own units on chip; states, and whatever a segment reads
of all units, go through memory. Programs that share samples are a group with a counter of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from elman.engines.triton.layout import Layout, padded
from elman.engines.triton.loop import Loop
from elman.ir.graph import Node
from elman.ir.pair import sealed
from elman.ir.types import Atom
from elman.plan.program import Acc, Bundle, Home, Phase, Segment
from elman.plan.segments import full_reads

_FEWEST = 8  # units of a block: what tensor cores take along that side
_INNER = 16  # and along which they sum
_WASTE, _SMALL = 1 / 8, 64  # padding of an inner dim at most, as a share, if it is no small one


@dataclass(frozen=True)
class Piece:
    """A part of a product's inner dim of ``size`` units: a power of two from ``start`` on."""

    size: int
    start: int
    length: int

    @property
    def padded(self) -> bool:
        """Whether it reaches beyond the last unit."""
        return self.start + self.length > self.size


def pieces(size: int) -> tuple[Piece, ...]:
    """An inner dim as powers of two, with little padding: 1152 is 1024 and 128."""
    found: list[Piece] = []
    at = 0
    while at < size:
        rest = size - at
        length = padded(rest)
        if length - rest > _WASTE * size and length > _SMALL:
            length //= 2
        found.append(Piece(size, at, length))
        at += length
    return tuple(found)


class Grid(Loop):
    """One direction's time loop, its units cut over ``programs``.

    Args:
        layout, phase, chunk, forward: as of :class:`Loop`; all states are kept.
        own: units of the largest atom that a program has.
        splits: how many parts of a product's inner dim are computed side by side.
    """

    numbers = ("i0", "i1", "T", "B")
    axis = 1
    steps = "i0, i1"

    def __init__(
        self,
        layout: Layout,
        phase: Phase,
        chunk: tuple[list[int], int],
        *,
        forward: bool,
        own: int,
        splits: int,
    ) -> None:
        kept = (True,) * len(layout.state_widths)
        super().__init__(layout, phase, chunk, forward=forward, kept=kept, ragged=False)
        self.splits = splits
        self.scratch = layout.slots(phase.scratch)
        sizes = [layout.size(atom) for atom in _atoms(phase)]
        self.programs = -(-max(sizes, default=1) // own)
        self.passes = 1 + sum(segment.sync for segment in phase.segments)
        # the interpreter repeats a step: what a program had before and what it has stored are two
        # arrays there, and one on a GPU
        self._now = False
        self._whole: dict[tuple[Node, Piece], str] = {}
        self._inner: dict[Piece, str] = {}
        self._split_weights: dict[tuple[Node, bool, Piece], str] = {}
        self._all: set[int] = set()
        leaves = layout.program.pair.d_next
        nodes = [v for s in phase.segments for p in s.parts for v in p.nodes]
        nodes += [v for s in phase.segments for v in s.scalars]
        read = {arg for value in nodes for arg in full_reads(value)}
        self._shared = {k for k, leaf in enumerate(leaves) if leaf in read}

    def _own(self, size: int) -> int:
        return -(-size // self.programs)

    def block_of(self, size: int) -> int:
        """See :meth:`Body.block_of`."""
        return max(_FEWEST, 1 << (self._own(size) - 1).bit_length())

    def masked(self, size: int) -> bool:
        """See :meth:`Body.masked`."""
        return True

    def indices(self, name: str, size: int) -> list[str]:
        """See :meth:`Body.indices`: those of this program."""
        own = f"tl.arange(0, {self.block_of(size)})[:, None]"
        return [
            f"{name} = tl.program_id(0) * {self._own(size)} + {own}",
            f"ok_{name} = ({own} < {self._own(size)}) & ({name} < {size})",
        ]

    def address(self, home: Home, value: Node) -> str:
        """See :meth:`Body.address`."""
        if home.where in ("tape", "chunk") and self._now:
            name = "tapenow" if home.where == "tape" else "chnow"
            row = self.layout.tape_row if home.where == "tape" else self.chunk[1]
            base = self._base(f"p_{name}", f"{name} + row * {row}", name)
            offsets = self.layout.tape if home.where == "tape" else self.chunk[0]
            return f"{base} + {offsets[home.index]}"
        if home.where == "scratch":
            offsets, row = self.scratch
            base = self._base("p_sr", f"sr + ((t & 1) * B + n) * {row}", "sr")
            return f"{base} + {offsets[home.index]}"
        if home.where in ("carry", "d_state"):
            name, step = ("p_ca", "t") if home.where == "carry" else ("p_cn", "t + 1")
            text = f"ca + ((({step}) & 1) * B + n) * {self.layout.carry_row}"
            return f"{self._base(name, text, 'ca')} + {self.layout.carry[home.index]}"
        return super().address(home, value)

    def store(self, home: Home, value: Node) -> None:
        """See :meth:`Body.store`; what others read in full goes to memory as well."""
        self.use(value)
        self._now = True
        super().store(home, value)
        if home.where == "scratch" or (home.where == "d_state" and home.index in self._shared):
            super(Loop, self).store(home, value)
        self._now = False

    def _anywhere(self, value: Node) -> str:
        """Text of the pointers [1, samples] to a value of which all units are read."""
        self._now = True
        at = self.address(self.phase.homes[value], value)
        self._now = False
        return at

    def segment(self, segment: Segment) -> None:
        """See :meth:`Body.segment`."""
        if segment.sync:
            self.lines += [
                f"meeting += {self.programs}",
                "if MEET:",
                "    lib.meet(bar + tl.program_id(1), meeting)",
            ]
        super().segment(segment)

    def _inner_of(self, piece: Piece) -> tuple[str, int]:
        """The name of a piece's indices [splits, units of a split], and how many splits."""
        splits = max(1, min(self.splits, piece.length // _INNER))
        each = piece.length // splits
        if piece not in self._inner:
            name = self._inner[piece] = f"k{piece.size}_{piece.start}"
            first = f"{piece.start} + tl.arange(0, {splits})[:, None] * {each}"
            self.before.append(f"{name} = {first} + tl.arange(0, {each})[None, :]")
        return self._inner[piece], splits

    def _split_weight(self, matrix: Node, transposed: bool, piece: Piece) -> str:
        """The name of this program's rows of a matrix: [splits, units, units of a split]."""
        found = self._split_weights.get((matrix, transposed, piece))
        if found is not None:
            return found
        if matrix not in self.matrices:
            self.matrices.append(matrix)
        array = f"m{self.matrices.index(matrix)}"
        rows, columns = (self.layout.size(dim[0]) for dim in matrix.shape)
        out = columns if transposed else rows
        k, _ = self._inner_of(piece)
        u, at_k = f"{self.units(out)}[None, :, :]", f"{k}[:, None, :]"
        ok = f"ok_{self.units(out)}[None, :, :]"
        if piece.padded:
            ok = f"{ok} & ({at_k} < {piece.size})"
        at = f"{u} + {at_k} * {array}_r" if transposed else f"{u} * {array}_r + {at_k}"
        name = self._split_weights[matrix, transposed, piece] = self.fresh("w")
        self.before.append(f"{name} = tl.load({array} + {at}, mask={ok}, other=0.0).to(DT)")
        return name

    def _split_operand(self, value: Node, piece: Piece) -> str:
        """The name of a piece of all units: [splits, units of a split, samples]."""
        if (value, piece) in self._whole:
            return self._whole[value, piece]
        k, _ = self._inner_of(piece)
        at = f"({self._anywhere(value)})[None, :, :] + {k}[:, :, None]"
        mask = "live[None, :, :]"
        if piece.padded:
            mask = f"({k} < {piece.size})[:, :, None] & {mask}"
        name = self._whole[value, piece] = self.fresh("o")
        self.lines.append(
            f"{name} = tl.load({at}, mask={mask}, other=0.0, cache_modifier='.cg').to(DT)"
        )
        return name

    def product(self, bundle: Bundle, acc: Acc) -> str:
        """Parts of the inner dim side by side, then their sum."""
        units = self.block_of(self.layout.width(acc.into))
        chains: dict[int, str] = {}  # what has unlike splits is summed apart
        for term in acc.terms:
            matrix, operand = term.args
            for piece in pieces(self.layout.width(operand)):
                _, splits = self._inner_of(piece)
                weight = self._split_weight(matrix, term.transposed, piece)
                value = self._split_operand(operand, piece)
                start = chains.get(splits, f"tl.zeros([{splits}, {units}, N], tl.float32)")
                name = chains[splits] = self.fresh("a")
                self.lines.append(
                    f"{name} = lib.dot_split({weight}, {value}, {start}, PRECISION, INTERPRETED)"
                )
        made = self.fresh("a")
        total = " + ".join(f"tl.sum({name}, 0)" for name in chains.values())
        self.lines.append(f"{made} = {total}")
        return made

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
        if sealed(value):
            at = f"vec + {self.layout.vector(value)} + {f}"
            self.before.append(f"{name} = tl.load({at}, mask=ok_{f}, other=0.0)")
            return f"tl.broadcast_to({name}, [{padded(size)}, N])", f"ok_{f}"
        at = f"{self._anywhere(value)} + {f}"
        self.lines.append(
            f"{name} = tl.load({at}, mask=ok_{f} & live, other=0.0, cache_modifier='.cg')"
            ".to(tl.float32)"
        )
        return name, f"ok_{f}"

    def _begin(self) -> list[str]:
        self.pointers["bar"] = None
        return [*super()._begin(), "meeting = 0"]


def _atoms(phase: Phase) -> list[Atom]:
    """Atoms that the phase computes in."""
    return [part.atom for segment in phase.segments for part in segment.parts]
