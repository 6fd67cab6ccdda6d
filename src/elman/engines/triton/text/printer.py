"""A lowered phase as straight-line Triton: blocks [units, samples], scalars [1, samples]."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Sequence

from elman.engines.triton.text.layout import TritonLayout, padded, power_of_2
from elman.engines.triton.text.ops import FOLDS, block, number, spell, spell_sum
from elman.ir.ops import OF_PARTS
from elman.lowered.types import (
    Acc,
    Access,
    Across,
    Affine,
    Const,
    Let,
    Load,
    Op,
    Part,
    Product,
    Reduce,
    Ref,
    Segment,
    Space,
    Store,
    Value,
)

NO_UNIT = "tl.zeros([1, 1], tl.int32)"


class Printer(ABC):
    """Prints the segments of a phase; subclasses define memory and products.

    Attributes:
        before: lines before any loop: indices, constants, values that are loaded once.
        lines: lines of a step, or of a block of rows.
        arrays: names of the arrays and strides that the lines use, in order.
        at_hand: variables that hold the values of columns.
    """

    def __init__(self, layout: TritonLayout) -> None:
        self.layout = layout
        self.before: list[str] = []
        self.lines: list[str] = []
        self.arrays: dict[str, None] = {}
        self.at_hand: dict[Access, str] = {}
        self._touched: list[Access] = []  # loaded or stored since the last barrier
        self._once: dict[Hashable, str] = {}
        self._sizes: set[int] = set()
        self._count = 0
        # of the current part
        self._registers: list[str] = []
        self._products: list[Sequence[str]] = []
        self._part_units = 0  # 0: scalars are computed

    @property
    def live(self) -> str:
        """The mask of the samples that a program computes."""
        return "live"

    @abstractmethod
    def address(self, access: Access) -> str:
        """Pointers [1, samples] to the first element of a column in each row."""

    @abstractmethod
    def product(self, product: Product) -> list[str]:
        """The variables of its accumulations."""

    # names

    def array(self, name: str) -> str:
        """The name of an array or stride, which becomes an argument of the kernel."""
        self.arrays[name] = None
        return name

    def fresh(self, letter: str = "x") -> str:
        """A new variable."""
        self._count += 1
        return f"{letter}{self._count}"

    def define(self, text: str, letter: str = "x") -> str:
        """Define a new variable in the step."""
        name = self.fresh(letter)
        self.lines.append(f"{name} = {text}")
        return name

    def once(self, key: Hashable, letter: str, text: str) -> str:
        """The variable of a key, defined before any loop."""
        if key not in self._once:
            name = self._once[key] = self.fresh(letter)
            self.before.append(f"{name} = {text}")
        return self._once[key]

    # units

    def units(self, size: int) -> str:
        """The indices [units, 1] of ``size`` units."""
        if size not in self._sizes:
            self._sizes.add(size)
            self.before += self.indices(f"u{size}", size)
        return f"u{size}"

    def indices(self, name: str, size: int) -> list[str]:
        """Define the units of a program, and their mask if they need one."""
        mask = [f"ok_{name} = {name} < {size}"] if self.masked(size) else []
        return [f"{name} = tl.arange(0, {self.block_of(size)})[:, None]", *mask]

    def block_of(self, size: int) -> int:
        """Units of a block."""
        return padded(size)

    def masked(self, size: int) -> bool:
        """Whether a block is padded."""
        return padded(size) != size

    def inside(self, size: int, live: str = "") -> str:
        """A mask of units and samples."""
        live = live or self.live
        return f"ok_{self.units(size)} & {live}" if self.masked(size) else live

    def broadcast(self, name: str, access: Access) -> str:
        """A variable broadcast to every unit of a column, and to every sample."""
        units = 1 if access.scalar else self.block_of(access.units)
        return f"tl.broadcast_to({name}, [{units}, N])"

    # memory

    def use(self, access: Access) -> str:
        """The variable with the value of a column, loaded if need be."""
        if access.region.space is Space.VECTOR:
            return self._invariant(access)
        if access not in self.at_hand:
            self.at_hand[access] = self.load(access)
        return self.at_hand[access]

    def _invariant(self, access: Access) -> str:
        units, mask = NO_UNIT, ""
        if not access.scalar:
            units = self.units(access.units)
            mask = f", mask=ok_{units}, other=0.0" if self.masked(access.units) else ""
        at = f"{self.array('vec')} + {access.offset} + {units}"
        return self.once(access, "v", f"tl.load({at}{mask})")

    def load(self, access: Access) -> str:
        """Load a column."""
        self._touched.append(access)
        return self.define(f"{self.loaded(access)}.to(tl.float32)")

    def loaded(self, access: Access) -> str:
        """A column in the type of the memory."""
        at, mask = self.units_at(self.address(access), access)
        return f"tl.load({at}, mask={mask}, other=0.0)"

    def units_at(self, address: str, access: Access) -> tuple[str, str]:
        """Pointers to all units of a column, and their mask."""
        if access.scalar:
            return address, self.live
        return f"{address} + {self.units(access.units)}", self.inside(access.units)

    def in_memory(self, access: Access) -> bool:
        """Whether a store writes to memory, not only to a variable."""
        return True

    def store(self, access: Access, name: str) -> None:
        """Store a variable to a column."""
        self.at_hand[access] = name
        if self.in_memory(access):
            self.order(access)
            self.lines.append(self.stored(self.address(access), access, name))

    def order(self, access: Access) -> None:
        """Print a barrier between loads of a column and a store to it: a small block has copies of
        an element on several threads, and one may load after another has stored."""
        if any(overlap(access, earlier) for earlier in self._touched):
            self.lines.append("tl.debug_barrier()")
            self._touched.clear()
        self._touched.append(access)

    def stored(self, address: str, access: Access, name: str) -> str:
        """The line that stores a variable."""
        at, mask = self.units_at(address, access)
        return f"lib.put({at}, {self.broadcast(name, access)}, {mask})"

    # statements

    def segment(self, segment: Segment) -> None:
        """Print all statements of a segment."""
        self._part_units = 0
        for store in segment.scalars:
            self.store(store.access, self.name(store.value))
        for part in segment.parts:
            self.part(part)

    def part(self, part: Part) -> None:
        """Print the products and statements of a part."""
        self._products = [self.product(product) for product in part.products]
        self._registers, self._part_units = [], self.layout.size(part.gate_block)
        for statement in part.body:
            match statement:
                case Let(value):
                    self._registers.append(self.name(value))
                case Store(access, value):
                    self.store(access, self.name(value))
                case _:
                    pass  # prefetches: a loop loads a step ahead anyway

    def name(self, value: Value) -> str:
        """The variable of a value."""
        match value:
            case Ref(index):
                return self._registers[index]
            case Load(access):
                return self.use(access)
            case Acc(product, index):
                return self._products[product][index]
            case Const(exact):
                return self.once(exact.hex(), "k", block(exact))
            case Op(op, args, stream):
                return self.elementwise(op, [*map(self.name, args)], stream)
            case Affine(coefs, bias, args):
                return self.weighted_sum(coefs, bias, [*map(self.name, args)])
            case Reduce():
                return self.define(self._reduced(value))
            case Across():
                return self.define(self.program_units(self._across(value), self._part_units))
            case _:
                raise AssertionError("a loop over matrices per sample prints these")

    def elementwise(self, op: str, args: Sequence[str], stream: int) -> str:
        """The variable of an elementwise operation."""
        is_wide = op == "uniform" and self._part_units
        unit = self.units(self._part_units) if is_wide else NO_UNIT
        return self.define(spell(op, args, unit, stream))

    def weighted_sum(self, coefs: Sequence[float], bias: float, args: Sequence[str]) -> str:
        """The variable of ``bias + Σ coef · arg``."""
        return self.define(spell_sum(coefs, bias, args))

    # units of others

    def all_units(self, access: Access) -> tuple[str, str]:
        """A block with all units of a column, and their mask if they need one."""
        masked = not access.scalar and self.masked(access.units)
        mask = f"ok_{self.units(access.units)}" if masked else ""
        return self.broadcast(self.use(access), access), mask

    def program_units(self, all_units: str, size: int) -> str:
        """This program's units of a block with all ``size`` units."""
        return all_units

    def _across(self, value: Across) -> str:
        """A block with all units of an op that reads other units than its own."""
        column, groups, width = value.column, value.groups, value.width
        if value.name == "cumsum":
            return f"tl.cumsum({only(*self.all_units(column))}, 0, reverse={value.reverse})"
        wide = self.use(column) if column.scalar else self.all_units(column)[0]
        if value.name in OF_PARTS:
            count = f", {width}" if value.name == "place" else ""
            size = padded(self._part_units)
            return f"lib.{value.name}({wide}, {size}{count}, {value.shift})"
        if value.name not in ("spread", "one_hot"):
            return _grouped(value.name, wide, padded(groups), width)
        wide = f"lib.spread({wide}, {padded(groups * width)}, {width}, N)"
        return wide if value.name == "spread" else f"lib.one_hot({wide}, {width}, {value.shift})"

    def _reduced(self, value: Reduce) -> str:
        """A reduction over the units of some columns: [1, samples]."""
        wide = [self.all_units(column) for column in value.columns]
        sizes = [column.units for column in value.columns]
        if value.name == "argmax":
            return self._first([units for units, _ in wide], sizes)
        if value.name in FOLDS:
            return f"({_folded(value.name, wide)})[None, :]"
        assert value.name in ("mean", "var"), value.name
        share = number(1.0 / sum(sizes))
        mean = f"(({_folded('sum', wide)}) * {share})[None, :]"
        if value.name == "mean":
            return mean
        middle = self.define(mean) if value.mean is None else self.name(value.mean)
        off = [self.define(only(f"({units} - {middle})", mask)) for units, mask in wide]
        squares = " + ".join(f"tl.sum({each} * {each}, 0)" for each in off)
        return f"(({squares}) * {share})[None, :]"

    def _first(self, wide: Sequence[str], sizes: Sequence[int]) -> str:
        """The index of the first maximum over the units of all columns."""
        columns = [*zip(wide, sizes, strict=True)]
        best = [self.define(_grouped("amax", units, 1, size)) for units, size in columns]
        places = [
            f"{_grouped('argmax', units, 1, size)} + {sum(sizes[:k])}.0"
            for k, (units, size) in enumerate(columns)
        ]
        place, top = places[-1], FOLDS["amax"].join(best)
        for largest_unit, earlier in zip(best[-2::-1], places[-2::-1], strict=True):
            is_first = f"({largest_unit} == {top}) | ({largest_unit} != {largest_unit})"
            place = f"tl.where({is_first}, {earlier}, {place})"
        return place


def overlap(one: Access, other: Access) -> bool:
    """Whether two columns share elements of a row."""
    same_rows = (one.region.space, one.region.array, one.step) == (
        other.region.space,
        other.region.array,
        other.step,
    )
    first, second = sorted((one, other), key=lambda access: access.offset)
    return same_rows and second.offset < first.offset + first.units


def _folded(op: str, wide: Sequence[tuple[str, str]]) -> str:
    """A reduction of some blocks, each with its mask, along their units: [samples]."""
    call, neutral, _ = FOLDS[op]
    return FOLDS[op].join([f"{call}({only(*of, neutral)}, 0)" for of in wide])


def _grouped(op: str, units: str, groups: int, width: int) -> str:
    """A reduction within groups of ``width`` units."""
    padding = padded(width) if groups == 1 else power_of_2(width)
    return f"lib.group_{op}({units}, {groups}, {padding}, {width})"


def only(units: str, mask: str, padding: float = 0.0) -> str:
    """A block with its padding replaced."""
    return f"tl.where({mask}, {units}, {number(padding)})" if mask else units


def with_heads(arrays: Collection[str], axis: int) -> tuple[list[str], list[str]]:
    """A kernel's arguments with strides between heads, and the lines that advance to a program's
    head; ``axis``: of the grid of programs."""
    names = [name for name in arrays if "_" not in name]  # else a stride
    lines = [f"{name} += tl.program_id({axis}).to(tl.int64) * {name}_h" for name in names]
    return [*arrays, *(f"{name}_h" for name in names)], lines
