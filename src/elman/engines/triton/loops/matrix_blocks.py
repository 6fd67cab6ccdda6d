"""Steps over matrices per sample as Triton: blocks [rows, columns], and vectors along either axis.

A vector is a block [units, 1] or [1, units], so that it broadcasts along rows or columns.

An axis of the matrices is cut over several programs if no program needs a complete sum over that
axis. Each program has a partial sum; values that are linear in it are partial, too, and partial
values that are stored or carried to the first step are added up after the loop. A backward is
linear in all its cotangents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from elman.engines.triton.device.schedule import TritonSchedule
from elman.engines.triton.loops.loop import Loop
from elman.engines.triton.text.layout import TritonLayout
from elman.engines.triton.text.ops import number
from elman.engines.triton.text.printer import NO_UNIT, only, overlap
from elman.errors import EngineError
from elman.ir.ops import OF_PARTS
from elman.ir.types import GateBlock, axes_of
from elman.lowered.lower import DirectionLowering
from elman.lowered.types import (
    Access,
    Accumulate,
    Across,
    Along,
    Axis,
    Let,
    Moved,
    Multiply,
    Part,
    Phase,
    Reduce,
    Segment,
    Space,
    Store,
    Value,
)

Form = Literal["rows", "columns", "matrix"]  # of a block: [units, 1], [1, units], [rows, columns]
VECTORS: tuple[Axis, Axis] = ("rows", "columns")
# ops that reduce matrices, or read other units of one, and have a kernel
OF_MATRICES = ("sum", "mean", "fold", "swapaxes")
AGAIN = "again"  # prefix of the replay's variables
_INDEX = {"rows": ":, None", "columns": "None, :"}
_AT_HAND = (Space.LOCAL, Space.SUMMED, Space.REPLAYED)
# memory of a backward that no other program reads within the loop
_UNREAD = (Space.TAPE, Space.CHUNK, Space.SCRATCH, Space.SCALAR, Space.CARRY)


class MatrixBlocks(Loop):
    """Prints the segments of a step over the matrices of one sample.

    Args:
        layout, schedule, lowering, phase, options: see :class:`Loop`.
        replay: of a backward, the step that recomputes the matrices.
        axis: the axis that may be cut.
        partial_states: states whose cotangents are partial sums if it is cut.

    Attributes:
        cut: units of a program along the axis; 0: all.
        partial: columns of partial sums, and their offsets in a program's row of partial sums.
        partial_width: elements of such a row.
        divisible: whether the axis can be cut, known once the text is printed.
    """

    def __init__(
        self,
        layout: TritonLayout,
        schedule: TritonSchedule,
        lowering: DirectionLowering,
        phase: Phase,
        replay: Phase | None,
        axis: Axis,
        partial_states: frozenset[int] = frozenset(),
        **options: Any,
    ) -> None:
        super().__init__(layout, schedule, lowering, phase, **options)
        self.replay, self.axis, self.cut = replay, axis, schedule.units
        self.partial_states = partial_states
        self.partial: dict[Access, int] = {}
        self.partial_width = 0
        self.divisible = True
        self._partial_sums = {f"h{k}" for k in partial_states}  # variables
        self._widths: set[int] = set()  # units along the axis
        phases = [phase, *([replay] if replay is not None else [])]
        parts = [part for each in phases for segment in each.segments for part in segment.parts]
        matrices = [part.gate_block for part in parts if isinstance(part.gate_block, tuple)]
        self._along_columns = {block[1] for block in matrices} - {block[0] for block in matrices}
        states = layout.program.pair.step.states
        blocks = [state.shape[0][0] if state.shape else None for state in states]
        self._state_forms: list[Form] = [self._form_of(block) for block in blocks]
        self._state_axes = [None if b is None else axes_of(b, layout.sizes) for b in blocks]
        self._form: Form = "rows"  # form of the printed blocks
        self._flat = False
        self._axes = (1, 1)  # rows and columns of the printed matrix
        self._forms: dict[Access, Form] = {}  # of columns in registers
        self._axes_of: dict[Access, tuple[int, int]] = {}  # of matrices in registers
        self._ahead_forms: list[tuple[Form, tuple[int, int]]] = []
        self._other: dict[tuple[Access, Form], str] = {}  # variables of another form
        self._loaded: set[Access] = set()
        self._loads: list[tuple[Access, bool]] = []  # and whether programs load different units
        self._stores: list[tuple[Access, bool]] = []
        self._again = False  # whether the replay is being printed

    def _form_of(self, block: GateBlock | None) -> Form:
        """The form of a gate block's vectors: the axis of matrices that they belong to."""
        if isinstance(block, tuple):
            return "matrix"
        return "columns" if block in self._along_columns else "rows"

    @contextmanager
    def _as(
        self, form: Form, axes: tuple[int, int] | None = None, *, flat: bool = False
    ) -> Iterator[None]:
        """Print blocks in a form; ``flat``: vectors as blocks [units]."""
        before = self._form, self._axes, self._flat
        self._form, self._axes, self._flat = form, axes or self._axes, flat
        yield
        self._form, self._axes, self._flat = before

    # units

    def indices(self, name: str, size: int) -> list[str]:
        """See :meth:`Printer.indices`; names have a ``w`` along columns, and begin with ``f`` in
        blocks of one dim."""
        form: Form = "columns" if "w" in name else "rows"
        if form == self.axis:
            self._widths.add(size)
        with self._as(form):
            first = f"tl.program_id(1) * {self.cut} + " if self.cut and form == self.axis else ""
            index = "" if name.startswith("f") else f"[{_INDEX[form]}]"
            units = f"tl.arange(0, {self.block_of(size)}){index}"
            mask = [f"ok_{name} = {name} < {size}"] if self.masked(size) else []
            return [f"{name} = {first}{units}", *mask]

    def block_of(self, size: int) -> int:
        return self.cut if self.cut and self._form == self.axis else super().block_of(size)

    def masked(self, size: int) -> bool:
        return size % self.block_of(size) != 0

    @property
    def shares(self) -> int:
        """Programs of one sample."""
        return -(-max(self._widths) // self.cut) if self.cut else 1

    def units(self, size: int) -> str:
        """See :meth:`Printer.units`, in the printed form."""
        name = f"{'f' if self._flat else ''}{'w' if self._form == 'columns' else 'u'}{size}"
        key = ("units", name)
        if key not in self._once:
            self._once[key] = name
            self.before += self.indices(name, size)
        return name

    def _element(self) -> tuple[str, list[str]]:
        """The offsets of a matrix's elements, and their masks."""
        names: list[str] = []
        masks: list[str] = []
        for form, size in zip(VECTORS, self._axes, strict=True):
            with self._as(form):
                names.append(self.units(size))
                masks += [f"ok_{names[-1]}"] if self.masked(size) else []
        return f"{names[0]} * {self._axes[1]} + {names[1]}", masks

    def inside(self, size: int, live: str = "") -> str:
        if self._form != "matrix":
            return super().inside(size, live)
        return " & ".join([*self._element()[1], live or self.live])

    def _shape(self, size: int) -> str:
        """The shape of a block of ``size`` units."""
        match self._form:
            case "matrix":
                sizes: list[int] = []
                for form, axis in zip(VECTORS, self._axes, strict=True):
                    with self._as(form):
                        sizes.append(self.block_of(axis))
                return str(sizes)
            case "columns":
                return f"[1, {self.block_of(size)}]"
            case "rows":
                return f"[{self.block_of(size)}, 1]"

    def broadcast(self, name: str, access: Access) -> str:
        shape = "[1, 1]" if access.scalar else self._shape(access.units)
        return f"tl.broadcast_to({name}, {shape})"

    def units_at(self, address: str, access: Access) -> tuple[str, str]:
        if access.scalar:
            return f"{address} + {NO_UNIT}", self.live
        if self._form != "matrix":
            return super().units_at(address, access)
        return f"{address} + {self._element()[0]}", self.inside(access.units)

    # memory

    def use(self, access: Access) -> str:
        """See :meth:`Printer.use`, in the printed form."""
        if access.region.space is Space.VECTOR:
            return self._invariant(access)
        if access.region.space is Space.REPLAYED and access not in self.at_hand:
            return self._matrix_at(access)
        form: Form = "rows" if access.scalar else self._form
        if access not in self.at_hand:
            self.at_hand[access] = self.load(access)
            self._forms[access] = form
            if form == "matrix":
                self._axes_of[access] = self._axes
            self._loaded.add(access)
        if access.scalar or self._forms[access] == form:
            return self.at_hand[access]
        key = access, form
        if key not in self._other:
            transposed = f"tl.trans({self.at_hand[access]})"
            is_loaded = access in self._loaded
            self.divisible &= is_loaded
            self._other[key] = self.load(access) if is_loaded else self.define(transposed)
        return self._other[key]

    def _invariant(self, access: Access) -> str:
        at, mask = self.units_at(f"{self.array('vec')} + {access.offset}", access)
        mask = " & ".join(part for part in mask.split(" & ") if part != self.live)
        masked = f", mask={mask}, other=0.0" if mask else ""
        key = access, self._form, self._axes if self._form == "matrix" else None
        return self.once(key, "v", f"tl.load({at}{masked})")

    def loaded(self, access: Access) -> str:
        """See :meth:`Printer.loaded`; vectors are loaded in one dim and expanded, because Triton
        would take a layout of [units, 1] for all matrices (160 shuffles a step instead of 24)."""
        if access.scalar or self._form == "matrix":
            return super().loaded(access)
        with self._as(self._form, None, flat=True):
            return super().loaded(access)

    def _matrix_at(self, access: Access) -> str:
        """The variable of a matrix before or after a step of the backward or the replay."""
        kind = AGAIN if self._again else "new" if access.step else "old"
        return f"{kind}{access.region.array}"

    def load(self, access: Access) -> str:
        """See :meth:`Loop.load`: a step ahead, but at once in the replay."""
        index = "" if access.scalar or self._form == "matrix" else f"[{_INDEX[self._form]}]"
        self._loads.append((access, self._is_cut(access)))
        if self._again:
            return self.define(f"{self.loaded(access)}{index}.to(tl.float32)")
        raw = self.fresh("r")
        self._ahead.append((raw, access))
        self._ahead_forms.append((self._form, self._axes))
        return self.define(f"{raw}{index}.to(tl.float32)")

    def load_ahead(self, number: int) -> str:
        with self._as(*self._ahead_forms[number]):
            return super().load_ahead(number)

    def in_memory(self, access: Access) -> bool:
        return access.region.space not in _AT_HAND and super().in_memory(access)

    def order(self, access: Access) -> None:
        if access not in self.partial:
            self._stores.append((access, self._is_cut(access)))
        super().order(access)

    def _is_cut(self, access: Access) -> bool:
        """Whether programs that share a sample have different units of a column."""
        return not access.scalar and self._form in (self.axis, "matrix")

    def shares_apart(self) -> bool:
        """Whether no program stores a column that another program of its sample may still have to
        load, unless each has its own units of the column."""
        return not any(
            overlap(store, load)
            for store, stores_cut in self._stores
            for load, loads_cut in self._loads
            if not (stores_cut and loads_cut)
        )

    def stored(self, address: str, access: Access, name: str) -> str:
        """See :meth:`Printer.stored`; a partial sum goes to the program's own row."""
        if self.cut and access in self.partial:
            row = f"(row{self._mark} * tl.num_programs(1) + tl.program_id(1))"
            address = f"{self.array('pa')} + {row} * {self.array('pa_r')} + {self.partial[access]}"
        return super().stored(address, access, name)

    def store(self, access: Access, name: str) -> None:
        for other in [other for other in self.partial if overlap(access, other)]:
            del self.partial[other]
        if name in self._partial_sums:
            self.divisible &= not self.forward and access.region.space in _UNREAD
            if self.in_memory(access):
                self.partial[access] = self.partial_width
                self.partial_width += access.units
        for form in (*VECTORS, "matrix"):
            self._other.pop((access, form), None)
        self._loaded.discard(access)
        self._forms[access] = "rows" if access.scalar else self._form
        if self._forms[access] == "matrix":
            self._axes_of[access] = self._axes
        super().store(access, name)

    # statements

    def segment(self, segment: Segment) -> None:
        with self._as("rows"):
            super().segment(segment)

    def part(self, part: Part) -> None:
        """See :meth:`Printer.part`, in the form of the part's gate block; as rows if units read
        other units."""
        form = self._form_of(part.gate_block)
        if any(isinstance(s, Let | Store) and isinstance(s.value, Across) for s in part.body):
            self.divisible &= form == "rows" and self.axis != "rows"
            form = "rows"
        with self._as(form, part.axes):
            super().part(part)
            for statement in part.body:
                if isinstance(statement, Multiply):
                    self._multiply(statement)
                elif isinstance(statement, Accumulate):
                    self._accumulate(statement)

    def _accumulate(self, statement: Accumulate) -> None:
        """Sum the elements of a matrix along an axis, or all of them."""
        element = self.name(statement.value)
        self.divisible &= element not in self._partial_sums
        value = f"tl.broadcast_to({element}, {self._shape(0)})"
        masks = self._element()[1]
        if statement.axis is None:
            text, form = f"tl.sum({only(value, ' & '.join(masks))})", "rows"
            text = f"{text} + tl.zeros([1, 1], tl.float32)"
        else:
            is_row = statement.axis == "rows"
            axis = 1 if is_row else 0
            mask = next((m for m in masks if m.startswith("ok_w" if is_row else "ok_u")), "")
            total = f"tl.sum({only(value, mask)}, {axis})"
            form = "rows" if is_row else "columns"
            text = f"{total}[{_INDEX[form]}]"
        name = self.define(text)
        if statement.axis != self.axis:
            self._partial_sums.add(name)
        with self._as(form):
            for access in statement.accesses:
                self.store(access, name)

    def name(self, value: Value) -> str:
        if isinstance(value, Along):
            with self._as(value.axis):
                return self.use(value.access)
        if isinstance(value, Moved):
            self.divisible = False
            with self._as("matrix", (value.rows, value.columns)):
                moved = self.broadcast(self.use(value.access), value.access)
            return self.define(f"tl.trans({moved})")
        if isinstance(value, Reduce) and value.name in OF_MATRICES:
            return self._sum(value)
        if isinstance(value, Across) and value.name in OF_PARTS:
            divisible, is_partial = self.divisible, self.use(value.column) in self._partial_sums
            name = super().name(value)
            if is_partial:  # moving units is linear, so moved partial sums are partial sums
                self.divisible = divisible
                return self._linear(name)
            return name
        return super().name(value)

    def elementwise(self, op: str, args: Sequence[str], stream: int) -> str:
        partial = [name in self._partial_sums for name in args]
        if not any(partial):
            return super().elementwise(op, args, stream)
        match op, partial:
            case ("mul", [True, False] | [False, True]) | ("div", [True, False]):
                pass
            case "where", [False, _, _]:
                args = [args[0], *(self._counted_once(name) for name in args[1:])]
            case _:
                self.divisible = False
        return self._linear(super().elementwise(op, args, stream))

    def weighted_sum(self, coefs: Sequence[float], bias: float, args: Sequence[str]) -> str:
        if self._partial_sums.isdisjoint(args):
            return super().weighted_sum(coefs, bias, args)
        self.divisible &= bias == 0.0
        args = [self._counted_once(name) for name in args]
        return self._linear(super().weighted_sum(coefs, bias, args))

    def _linear(self, name: str) -> str:
        """Mark a variable that is linear in partial sums as a partial sum."""
        is_vector = self._part_units != 0
        self.divisible &= not (is_vector and self._form in (self.axis, "matrix"))
        self._partial_sums.add(name)
        return name

    def _counted_once(self, name: str) -> str:
        """A complete value as a term of a partial sum: only one program adds it."""
        if not self.cut or name in self._partial_sums or name == self._once.get((0.0).hex()):
            return name
        return self.define(f"tl.where(tl.program_id(1) == 0, {name}, 0.0)")

    def _sum(self, value: Reduce) -> str:
        """The sum, or the mean, of all units of some columns."""
        columns = [*map(self._all_of, value.columns)]
        is_partial = any(partial for _, partial in columns)
        sums: list[str] = []
        for text, partial in columns:
            total = f"tl.sum({text})"
            sums.append(total if partial == is_partial else self._counted_once(total))
        total = f"{' + '.join(sums)} + tl.zeros([1, 1], tl.float32)"
        if value.name == "mean":
            total = f"({total}) * {number(1.0 / sum(column.units for column in value.columns))}"
        name = self.define(total)
        if is_partial:
            self._partial_sums.add(name)
        return name

    def _reduced(self, value: Reduce) -> str:
        if any(self._forms.get(column) == "matrix" for column in value.columns):
            raise EngineError(f"engine triton has no {value.name} of a matrix per sample")
        self.divisible &= self.axis != "rows"
        with self._as("rows"):
            return super()._reduced(value)

    def all_units(self, access: Access) -> tuple[str, str]:
        self.divisible &= self.use(access) not in self._partial_sums
        return super().all_units(access)

    def _across(self, value: Across) -> str:
        self.divisible &= self.use(value.column) not in self._partial_sums
        return super()._across(value)

    def _all_of(self, access: Access) -> tuple[str, bool]:
        """A program's units of a column, in its current form, with zeros as padding; and whether
        their sum is partial."""
        form = self._forms.get(access, "rows")
        with self._as(form, self._axes_of.get(access)):
            name = self.use(access)
            value = self.broadcast(name, access)
            if access.scalar:
                return value, name in self._partial_sums
            masks = [f"ok_{self.units(access.units)}"] if self.masked(access.units) else []
            text = only(value, " & ".join(self._element()[1] if form == "matrix" else masks))
        return text, name in self._partial_sums or form in (self.axis, "matrix")

    def _multiply(self, statement: Multiply) -> None:
        """A product of two matrices of the sample."""
        self.divisible = False
        sizes = (statement.rows, statement.inner), (statement.inner, statement.columns)
        sides: list[str] = []
        for access, axes, transposed in zip(
            (statement.left, statement.right), sizes, statement.transposed, strict=True
        ):
            with self._as("matrix", (axes[1], axes[0]) if transposed else axes):
                value = self.broadcast(self.use(access), access)
                value = f"({only(value, ' & '.join(self._element()[1]))}).to(DT)"
            sides.append(f"tl.trans({value})" if transposed else value)
        zeros = f"tl.zeros({self._shape(0)}, tl.float32)"
        name = self.define(f"lib.dot({', '.join(sides)}, {zeros}, PRECISION, INTERPRETED)", "a")
        for access in statement.accesses:
            self.store(access, name)
