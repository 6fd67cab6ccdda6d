"""One phase's segments as straight-line Triton: blocks [units, samples], scalars [1, samples]."""

from __future__ import annotations

from abc import ABC, abstractmethod

from elman.engines.triton.layout import TritonLayout, padded, power_of_2
from elman.engines.triton.ops import block, number, spell, spell_sum
from elman.ir.graph import Node
from elman.ir.ops import OPS
from elman.ir.pair import loop_invariant
from elman.ir.types import dim_size
from elman.plan.program import Buffer, Bundle, Part, Phase, Segment


class Body(ABC):
    """Writes the lines of a phase; subclasses define addresses and products.

    Attributes:
        before: lines that stand before any loop: indices, constants, what is loaded once.
        lines: those of a step, or of a block of rows.
    """

    def __init__(self, layout: TritonLayout, phase: Phase) -> None:
        self.layout, self.phase = layout, phase
        self.before: list[str] = []
        self.lines: list[str] = []
        self.names: dict[Node, str] = {}  # what is at hand in a step
        self.invariants: dict[Node, str] = {}  # what is at hand in every step
        self._units: dict[int, str] = {}
        self._count = 0

    @abstractmethod
    def address(self, buffer: Buffer, value: Node) -> str:
        """Text of the pointers [1, samples] to where a value's first unit lies in each row."""

    @abstractmethod
    def accumulated(self, bundle: Bundle) -> list[str]:
        """The names of all products of a bundle, each summed over its terms."""

    def fresh(self, letter: str = "x") -> str:
        """A name that was not used before."""
        self._count += 1
        return f"{letter}{self._count}"

    def units(self, size: int) -> str:
        """The name of the indices [units, 1] of so many units; with ``ok_`` before it, their
        mask."""
        if size not in self._units:
            name = f"u{size}"
            self._units[size] = name
            self.before += self.indices(name, size)
        return self._units[size]

    def indices(self, name: str, size: int) -> list[str]:
        """Lines that define the units of a program, and their mask if they need one."""
        lines = [f"{name} = tl.arange(0, {self.block_of(size)})[:, None]"]
        return [*lines, f"ok_{name} = {name} < {size}"] if self.masked(size) else lines

    def block_of(self, size: int) -> int:
        """Units of a block."""
        return padded(size)

    def masked(self, size: int) -> bool:
        """Whether a block is padded."""
        return padded(size) != size

    def inside(self, size: int, rows: str = "live") -> str:
        """Text of a mask of units and samples."""
        name = self.units(size)
        return f"ok_{name} & {rows}" if self.masked(size) else rows

    def constant(self, value: Node) -> str | None:
        """The name of a loop-invariant value, or None."""
        if value in self.invariants:
            return self.invariants[value]
        if value.op in ("const", "count"):
            constant_value = (
                value.number
                if value.op == "const"
                else float(dim_size(value.data, self.layout.sizes))
            )
            name = self.invariants[value] = self.fresh("k")
            self.before.append(f"{name} = {block(constant_value)}")
            return name
        if not loop_invariant(value):
            return None
        name = self.invariants[value] = self.fresh("v")
        offset = self.layout.vector(value)
        if value.shape:
            size = self.layout.width(value)
            units = self.units(size)
            mask = f", mask=ok_{units}, other=0.0" if self.masked(size) else ""
            self.before.append(f"{name} = tl.load(vec + {offset} + {units}{mask})")
        else:
            self.before.append(f"{name} = tl.load(vec + {offset} + tl.zeros([1, 1], tl.int32))")
        return name

    def use(self, value: Node) -> str:
        """The name of a value, loaded if need be."""
        name = self.constant(value) or self.names.get(value)
        if name is None:
            name = self.names[value] = self.load(self.phase.buffers[value], value)
        return name

    def load(self, buffer: Buffer, value: Node) -> str:
        """Load a value from its buffer; its name."""
        name = self.fresh()
        self.lines.append(f"{name} = {self.loaded(buffer, value)}.to(tl.float32)")
        return name

    def loaded(self, buffer: Buffer, value: Node) -> str:
        """Text of a value in its buffer, in the type of the memory."""
        at, mask = self.place(buffer, value)
        return f"tl.load({at}, mask={mask}, other=0.0)"

    def place(self, buffer: Buffer, value: Node) -> tuple[str, str]:
        """Text of the pointers to all units of a value, and of their mask."""
        at = self.address(buffer, value)
        if not value.shape:
            return at, "live"
        size = self.layout.width(value)
        return f"{at} + {self.units(size)}", self.inside(size)

    def store(self, buffer: Buffer, value: Node) -> None:
        """Store a value to a buffer."""
        name = self.use(value)
        at, mask = self.place(buffer, value)
        self.lines.append(f"lib.put({at}, {self.broadcast(name, value)}, {mask})")

    def broadcast(self, name: str, value: Node) -> str:
        """A value broadcast to every unit and sample."""
        units = self.block_of(self.layout.width(value)) if value.shape else 1
        return f"tl.broadcast_to({name}, [{units}, N])"

    def segment(self, segment: Segment) -> None:
        """All lines of a segment."""
        for value in segment.scalars:
            self._compute(value)
        for value, buffer in segment.scalar_writes:
            self.store(buffer, value)
        for part in segment.parts:
            self._part(part)

    def _part(self, part: Part) -> None:
        sums: dict[Node, str] = {}
        merged: set[Node] = set()
        for bundle in part.bundles:
            for acc, name in zip(bundle.accs, self.accumulated(bundle), strict=True):
                sums[acc.into] = name
                merged.update(term for term in acc.terms if term is not acc.into)
        for value in part.nodes:
            if value not in merged:
                self._compute(value, sums.get(value), frozenset(merged))
        for value, _ in part.writes:  # loads first: a store may go where another value lay
            self.use(value)
        for value, buffer in part.writes:
            self.store(buffer, value)

    def _compute(
        self, value: Node, product: str | None = None, merged: frozenset[Node] = frozenset()
    ) -> None:
        name = self.fresh()
        if value.op == "matmul":
            assert product is not None, "a product belongs to an acc"
            self.names[value] = product
            return
        if OPS[value.op].kind == "reduce" and not value.shape:
            text = self._reduced(value)
        elif value.over_units:
            text = self.owned_units(self._over_units(value), value)
        elif value.op == "lin":
            owned_units = [
                (coef, arg)
                for coef, arg in zip(value.coefs, value.args, strict=True)
                if product is None or arg not in merged
            ]
            terms = [self.use(arg) for _, arg in owned_units]
            coefs = tuple(coef for coef, _ in owned_units)
            if product is None:
                text = spell_sum(coefs, value.bias, terms)
            elif not owned_units and not value.bias:
                self.names[value] = product
                return
            else:
                text = spell_sum((1.0, *coefs), value.bias, [product, *terms])
        else:
            unit = "tl.zeros([1, 1], tl.int32)"
            if value.op == "uniform" and value.shape:
                unit = self.units(self.layout.width(value))
            text = spell(value, [self.use(arg) for arg in value.args], unit)
        self.lines.append(f"{name} = {text}")
        self.names[value] = name

    def all_units(self, value: Node) -> tuple[str, str | None]:
        """The name of a block with all units of a value, and of their mask if they need one."""
        size = self.layout.width(value)
        name = self.broadcast(self.use(value), value)
        return name, f"ok_{self.units(size)}" if self.masked(size) else None

    def owned_units(self, text: str, value: Node) -> str:
        """Text of this program's units of a block with all units of a value."""
        return text

    def _over_units(self, value: Node) -> str:
        """Text of a block with all units of what reads other units than its own."""
        (arg,) = value.args
        size = self.layout.width(value)
        if OPS[value.op].kind == "reduce":
            name, _ = self.all_units(arg)
            width = self.layout.width(arg) // size
            return f"lib.group_{value.op}({name}, {padded(size)}, {power_of_2(width)}, {width})"
        if value.op == "cumsum":
            name = only(*self.all_units(arg))
            return f"tl.cumsum({name}, 0, reverse={value.backward_in_units})"
        name = self.all_units(arg)[0] if arg.shape else self.use(arg)
        width = size // self.layout.width(arg)
        wide = f"lib.spread({name}, {padded(size)}, {width}, N)"
        if value.op == "spread":
            return wide
        return f"lib.one_hot({wide}, {width}, {sum(map(self.layout.size, value.data))})"

    def _first(self, value: Node, wide: list[tuple[str, str | None]]) -> str:
        """The number of the first largest unit of all arguments, counted over all of them."""
        sizes = [self.layout.width(arg) for arg in value.args]
        blocks = [
            f"({name}, 1, {padded(size)}, {size})"
            for (name, _), size in zip(wide, sizes, strict=True)
        ]
        best = [self.fresh() for _ in blocks]
        for name, arguments in zip(best, blocks, strict=True):
            self.lines.append(f"{name} = lib.group_amax{arguments}")
        top = largest(best)
        text = f"lib.group_argmax{blocks[-1]} + {sum(sizes[:-1])}.0"
        for k in reversed(range(len(blocks) - 1)):
            index = f"lib.group_argmax{blocks[k]} + {sum(sizes[:k])}.0"
            text = f"tl.where(({best[k]} == {top}) | ({best[k]} != {best[k]}), {index}, {text})"
        return text

    def _reduced(self, value: Node) -> str:
        """A reduction over the units of all arguments: [1, samples]."""
        count = sum(self.layout.width(arg) for arg in value.args)
        wide = [self.all_units(arg) for arg in value.args]
        if value.op == "argmax":
            return self._first(value, wide)
        if value.op == "amax":
            maxima = [f"lib.amax({only(name, mask, '-inf')})" for name, mask in wide]
            return f"({largest(maxima)})[None, :]"
        total = " + ".join(f"tl.sum({only(name, mask)}, 0)" for name, mask in wide)
        if value.op == "sum":
            return f"({total})[None, :]"
        mean = f"(({total}) * {number(1.0 / count)})[None, :]"
        if value.op == "mean":
            return mean
        middle = self.fresh()
        self.lines.append(f"{middle} = {mean}")
        squares: list[str] = []
        for name, mask in wide:
            off = self.fresh()
            self.lines.append(f"{off} = {only(f'({name} - {middle})', mask)}")
            squares.append(f"tl.sum({off} * {off}, 0)")
        return f"(({' + '.join(squares)}) * {number(1.0 / count)})[None, :]"


def largest(blocks: list[str]) -> str:
    """The largest of some blocks, unit by unit; NaN where there is one."""
    text = blocks[0]
    for other_block in blocks[1:]:
        text = f"tl.maximum({text}, {other_block}, propagate_nan=tl.PropagateNan.ALL)"
    return text


def only(text: str, mask: str | None, padding: str = "0.0") -> str:
    """A block with its padding replaced."""
    padding = padding if padding == "0.0" else f'float("{padding}")'
    return text if mask is None else f"tl.where({mask}, {text}, {padding})"
