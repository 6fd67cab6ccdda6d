"""One phase's segments as straight-line Triton: blocks [units, samples], scalars [1, samples]."""

from __future__ import annotations

from abc import ABC, abstractmethod

from elman.engines.triton.layout import TritonLayout, padded, power_of_2
from elman.engines.triton.ops import block, largest, number, spell, spell_sum
from elman.engines.triton.statements import Code, Operand, Statement, Var, assign, code, joined
from elman.ir.graph import Node
from elman.ir.ops import OPS
from elman.ir.pair import loop_invariant
from elman.ir.types import dim_size
from elman.plan.program import Buffer, Bundle, Part, Phase, Segment

LIVE = Var("live")  # mask of the samples that a program computes
NO_UNIT = "tl.zeros([1, 1], tl.int32)"


class Body(ABC):
    """Writes the statements of a phase; subclasses define addresses and products.

    Attributes:
        before: what stands before any loop: indices, constants, what is loaded once.
        statements: those of a step, or of a block of rows.
    """

    def __init__(self, layout: TritonLayout, phase: Phase) -> None:
        self.layout, self.phase = layout, phase
        self.before: list[Statement] = []
        self.statements: list[Statement] = []
        self.names: dict[Node, Var] = {}  # what is at hand in a step
        self.invariants: dict[Node, Var] = {}  # what is at hand in every step
        self._units: dict[int, tuple[Var, Var]] = {}
        self._count = 0

    @abstractmethod
    def address(self, buffer: Buffer) -> Code:
        """Pointers [1, samples] to where a value's first unit lies in each row."""

    @abstractmethod
    def accumulated(self, bundle: Bundle) -> list[Var]:
        """All products of a bundle, each summed over its terms."""

    def fresh(self, letter: str = "x") -> Var:
        """A variable that was not used before."""
        self._count += 1
        return Var(f"{letter}{self._count}")

    def define(self, template: str | Code, *operands: Operand, letter: str = "x") -> Var:
        """Define a new variable in the step."""
        name = self.fresh(letter)
        self.statements.append(assign(name, template, *operands))
        return name

    def units(self, size: int) -> Var:
        """The indices [units, 1] of so many units."""
        return self._indices(size)[0]

    def _indices(self, size: int) -> tuple[Var, Var]:
        """Indices of so many units, and which of them exist."""
        if size not in self._units:
            name, inside = self._units[size] = Var(f"u{size}"), Var(f"ok_u{size}")
            self.before += self.indices(name, inside, size)
        return self._units[size]

    def indices(self, name: Var, inside: Var, size: int) -> list[Statement]:
        """Define the units of a program, and their mask if they need one."""
        indices = assign(name, "tl.arange(0, {})[:, None]", self.block_of(size))
        mask = assign(inside, "{} < {}", name, size)
        return [indices, *([mask] if self.masked(size) else [])]

    def block_of(self, size: int) -> int:
        """Units of a block."""
        return padded(size)

    def masked(self, size: int) -> bool:
        """Whether a block is padded."""
        return padded(size) != size

    def inside(self, size: int, rows: Var = LIVE) -> Code:
        """A mask of units and samples."""
        _, mask = self._indices(size)
        return code("{} & {}", mask, rows) if self.masked(size) else code("{}", rows)

    def constant(self, value: Node) -> Var | None:
        """A loop-invariant value, or None."""
        if value not in self.invariants and value.op in ("const", "count"):
            sizes = self.layout.sizes
            exact = value.number if value.op == "const" else float(dim_size(value.data, sizes))
            name = self.invariants[value] = self.fresh("k")
            self.before.append(assign(name, block(exact)))
        elif value not in self.invariants and loop_invariant(value):
            offset = self.layout.vectors[value]
            units: Operand = NO_UNIT
            mask = code("")
            if value.shape:
                units, inside = self._indices(self.layout.width(value))
                if self.masked(self.layout.width(value)):
                    mask = code(", mask={}, other=0.0", inside)
            name = self.invariants[value] = self.fresh("v")
            at = code("{} + {} + {}", Var("vec"), offset, units)
            self.before.append(assign(name, "tl.load({}{})", at, mask))
        return self.invariants.get(value)

    def use(self, value: Node) -> Var:
        """A value, loaded if need be."""
        name = self.constant(value) or self.names.get(value)
        if name is None:
            name = self.names[value] = self.load(self.phase.buffers[value], value)
        return name

    def load(self, buffer: Buffer, value: Node) -> Var:
        """Load a value from its buffer."""
        return self.define("{}.to(tl.float32)", self.loaded(buffer, value))

    def loaded(self, buffer: Buffer, value: Node) -> Code:
        """A value in its buffer, in the type of the memory."""
        return code("tl.load({}, mask={}, other=0.0)", *self.units_at(self.address(buffer), value))

    def units_at(self, address: Code, value: Node) -> tuple[Code, Code]:
        """Pointers to all units of a value, and their mask."""
        if not value.shape:
            return address, code("{}", LIVE)
        size = self.layout.width(value)
        return code("{} + {}", address, self.units(size)), self.inside(size)

    def store(self, buffer: Buffer, value: Node) -> None:
        """Store a value to a buffer."""
        self.statements.append(self.stored(self.address(buffer), value))

    def stored(self, address: Code, value: Node) -> Statement:
        """The store of a value."""
        at, mask = self.units_at(address, value)
        wide = self.broadcast(self.use(value), value)
        return Statement(code("lib.put({}, {}, {})", at, wide, mask))

    def broadcast(self, name: Operand, value: Node) -> Code:
        """A value broadcast to every unit and sample."""
        units = self.block_of(self.layout.width(value)) if value.shape else 1
        return code("tl.broadcast_to({}, [{}, N])", name, units)

    def segment(self, segment: Segment) -> None:
        """All statements of a segment."""
        for value in segment.scalars:
            self._compute(value)
        for value, buffer in segment.scalar_writes:
            self.store(buffer, value)
        for part in segment.parts:
            self._part(part)

    def _part(self, part: Part) -> None:
        sums: dict[Node, Var] = {}
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
        self, value: Node, product: Var | None = None, merged: frozenset[Node] = frozenset()
    ) -> None:
        if value.op == "matmul":
            assert product is not None, "a product belongs to an acc"
            self.names[value] = product
        elif OPS[value.op].kind == "reduce" and not value.shape:
            self.names[value] = self.define(self._reduced(value))
        elif value.over_units:
            self.names[value] = self.define(self.program_units(self._over_units(value), value))
        elif value.op == "lin":
            self.names[value] = self._sum(value, product, merged)
        else:
            is_wide = value.op == "uniform" and value.shape
            unit = self.units(self.layout.width(value)) if is_wide else NO_UNIT
            args = [self.use(arg) for arg in value.args]
            self.names[value] = self.define(spell(value, args, unit))

    def _sum(self, value: Node, product: Var | None, merged: frozenset[Node]) -> Var:
        """A sum, of which a product may have some terms."""
        coefs: list[float] = []
        terms: list[Operand] = []
        if product is not None:
            coefs, terms = [1.0], [product]
        for coef, arg in zip(value.coefs, value.args, strict=True):
            if product is None or arg not in merged:
                coefs.append(coef)
                terms.append(self.use(arg))
        if product is not None and len(terms) == 1 and not value.bias:
            return product
        return self.define(spell_sum(coefs, value.bias, terms))

    def all_units(self, value: Node) -> tuple[Code, Var | None]:
        """A block with all units of a value, and their mask if they need one."""
        size = self.layout.width(value)
        wide = self.broadcast(self.use(value), value)
        return wide, self._indices(size)[1] if self.masked(size) else None

    def program_units(self, all_units: Code, value: Node) -> Code:
        """This program's units of a block with all units of a value."""
        return all_units

    def _over_units(self, value: Node) -> Code:
        """A block with all units of what reads other units than its own."""
        (arg,) = value.args
        size = self.layout.width(value)
        if OPS[value.op].kind == "reduce":
            wide, _ = self.all_units(arg)
            width = self.layout.width(arg) // size
            return _grouped(value.op, wide, padded(size), width)
        if value.op == "cumsum":
            wide = only(*self.all_units(arg))
            return code("tl.cumsum({}, 0, reverse={})", wide, str(value.backward_in_units))
        groups = self.all_units(arg)[0] if arg.shape else self.use(arg)
        width = size // self.layout.width(arg)
        wide = code("lib.spread({}, {}, {}, N)", groups, padded(size), width)
        if value.op == "spread":
            return wide
        return code("lib.one_hot({}, {}, {})", wide, width, sum(map(self.layout.size, value.data)))

    def _first(self, value: Node, wide: list[tuple[Code, Var | None]]) -> Code:
        """The number of the first largest unit of all arguments, counted over all of them."""
        widths = [self.layout.width(arg) for arg in value.args]
        blocks = [(units, 1, width) for (units, _), width in zip(wide, widths, strict=True)]
        best = [self.define(_grouped("amax", *of)) for of in blocks]
        top = largest(best)
        found: Code | None = None
        for k in reversed(range(len(blocks))):
            index = code("{} + {}.0", _grouped("argmax", *blocks[k]), sum(widths[:k]))
            if found is None:
                found = index
            else:
                is_first = code("({0} == {1}) | ({0} != {0})", best[k], top)
                found = code("tl.where({}, {}, {})", is_first, index, found)
        assert found is not None, "a reduction has arguments"
        return found

    def _reduced(self, value: Node) -> Code:
        """A reduction over the units of all arguments: [1, samples]."""
        share = number(1.0 / sum(self.layout.width(arg) for arg in value.args))
        wide = [self.all_units(arg) for arg in value.args]
        if value.op == "argmax":
            return self._first(value, wide)
        if value.op == "amax":
            maxima = [code("lib.amax({})", only(*of, "-inf")) for of in wide]
            return code("({})[None, :]", largest(maxima))
        total = joined([code("tl.sum({}, 0)", only(*of)) for of in wide], " + ")
        if value.op == "sum":
            return code("({})[None, :]", total)
        mean = code("(({}) * {})[None, :]", total, share)
        if value.op == "mean":
            return mean
        middle = self.define(mean)
        squares: list[Code] = []
        for units, mask in wide:
            off = self.define(only(code("({} - {})", units, middle), mask))
            squares.append(code("tl.sum({0} * {0}, 0)", off))
        return code("(({}) * {})[None, :]", joined(squares, " + "), share)


def _grouped(op: str, units: Operand, groups: int, width: int) -> Code:
    """A reduction within groups of so many units."""
    padding = padded(width) if groups == 1 else power_of_2(width)
    return code("lib.group_{}({}, {}, {}, {})", op, units, groups, padding, width)


def only(units: Operand, mask: Var | None, padding: str = "0.0") -> Code:
    """A block with its padding replaced."""
    if mask is None:
        return code("{}", units)
    padding = padding if padding == "0.0" else f'float("{padding}")'
    return code("tl.where({}, {}, {})", mask, units, padding)
