"""What every lowered program has to hold: accesses within memory, loads after stores, no races.

Workers that share the units of a step run from one wait to the next on their own: each stores its
own units of a column, and may load those. A load of *all* units (an operand of a product, a
reduction, a column of another gate block) needs a wait since the column was stored, and a store a
wait since all units of its memory were loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from elman.errors import VerifyError
from elman.ir.types import GateBlock
from elman.lowered.groups import unrolled
from elman.lowered.layout import Layout
from elman.lowered.lower import Lowered
from elman.lowered.types import (
    Acc,
    Access,
    Accumulate,
    Affine,
    Copy,
    Direction,
    Let,
    Matrix,
    MatVec,
    Multiply,
    Once,
    Op,
    Outer,
    Part,
    Phase,
    Ref,
    Space,
    Stage,
    Statement,
    Store,
    Transpose,
    Value,
    WeightRate,
    columns_of,
)
from lowered_dump import show_access

# memory that a program fills itself before it reads it
_OWNED = (Space.CHUNK, Space.SCRATCH, Space.SCALAR, Space.VECTOR, Space.MATRIX, Space.TAPE)
# memory that one worker alone reads and writes
_PRIVATE = (
    Space.SCALAR, Space.INPUT, Space.D_OUTPUT, Space.WEIGHT, Space.VECTOR, Space.MATRIX,
    Space.LOCAL, Space.REPLAYED,
)  # fmt: skip
_ALTERNATING = (Space.CARRY, Space.SCRATCH)  # rows of two steps alternate
_TURNS = 3  # of the loop: the third is the first to use the memory of the first again

Cell = tuple[Space, int, int, int]  # kind, array, step, offset


def verify(lowered: Lowered) -> None:
    """Check both directions.

    Raises:
        VerifyError: an access lies outside of its memory, something is loaded that nothing stores,
            a value names what is not there, or workers race.
    """
    taped: set[Cell] = set()
    for direction in lowered.directions:
        _Verifier(lowered.layout, direction, taped).check()


def phases_of(direction: Direction, stage: Stage) -> tuple[Phase, ...]:
    """The phases that run in a stage, in order."""
    before, _, after = direction.phases
    if stage is Stage.STEPS:
        return direction.all_phases if direction.sample_by_sample else direction.loops
    batched = {Stage.BEFORE: before, Stage.AFTER: after}
    return (batched[stage],) if stage in batched and not direction.sample_by_sample else ()


@dataclass
class _Verifier:
    """Walks one direction; ``taped``: columns of the tape that are stored."""

    layout: Layout
    direction: Direction
    taped: set[Cell]
    stored: set[Cell] = field(default_factory=set[Cell])
    # since the last wait: cells that were stored, by the gate block of the loop, and cells of which
    # all units were loaded
    fresh: dict[Cell, GateBlock | None] = field(default_factory=dict[Cell, "GateBlock | None"])
    loaded: set[Cell] = field(default_factory=set[Cell])
    # cells that the leading worker alone stores, and may load without a wait
    led: set[Cell] = field(default_factory=set[Cell])

    def check(self) -> None:
        """The whole direction, in the order in which it runs."""
        for computed in self.direction.setup:
            self._once(computed)
        for stage in self.direction.stages:
            for phase in phases_of(self.direction, stage):
                for turn in range(_TURNS if stage is Stage.STEPS else 1):
                    self._phase(phase, turn)
                self._wait()
            if stage is Stage.SUMS:
                self._sums()
        self._wait()
        for computed in self.direction.finish:
            self._once(computed)

    def _sums(self) -> None:
        for term in self.direction.sums:
            for column in (term.left, term.right):
                if column is not None:
                    self._load(column, 0, None, whole=True)
            if isinstance(term.target, Matrix):
                self._store_rows(term.target.access, term.target.rows)
            else:
                self._store(term.target, 0, None)

    def _wait(self) -> None:
        self.fresh.clear()
        self.loaded.clear()

    def _cell(self, access: Access, turn: int) -> Cell:
        """The memory of a column in the step that is looked at, or the one behind it."""
        region = access.region
        step = 0
        if region.space in _ALTERNATING and not region.batched:
            step = (turn + access.step) % 2
        elif region.space in (Space.STATE, Space.LOCAL, Space.REPLAYED):
            step = turn + access.step
        elif region.space in (Space.TAPE, Space.CHUNK, Space.OUTPUT, Space.D_INPUT):
            step = turn if not region.batched else 0
        return region.space, region.array, step, access.offset

    def _fail(self, access: Access, reason: str) -> VerifyError:
        return VerifyError(f"{self.direction.name}: {show_access(access)} {reason}")

    def _inside(self, access: Access) -> None:
        """A column lies in its row, or in the memory of weight rate."""
        lanes, space = self.layout.lanes, access.region.space
        units = 1 if access.scalar else access.units
        if access.width is None and not access.scalar:
            units = -(-units // lanes) * lanes
        row = access.region.row
        if space is Space.VECTOR:
            row = self.direction.vectors
        elif space is Space.MATRIX:
            row = self.direction.matrices
        elif space in (Space.INPUT, Space.D_OUTPUT):
            widths = self.layout.input_widths
            row = widths[access.region.array] if space is Space.INPUT else self.layout.output_width
        elif space in (Space.LOCAL, Space.REPLAYED):
            row, units = self.layout.state_widths[access.region.array], access.units
        elif space in (Space.WEIGHT, Space.D_WEIGHT):
            return  # the caller's; blocks are checked where they are cut
        if access.offset < 0 or access.offset + units > row:
            raise self._fail(access, f"lies outside of {row} elements")

    def _load(
        self, access: Access, turn: int, block: GateBlock | None, *, whole: bool, lead: bool = False
    ) -> None:
        self._inside(access)
        space, cell = access.region.space, self._cell(access, turn)
        if space in _OWNED and not self._stored(cell):
            raise self._fail(access, "is loaded, but nothing has stored it")
        if space in _PRIVATE:
            return
        if lead and cell in self.led:
            return
        if cell in self.fresh and (whole or access.scalar or self.fresh[cell] != block):
            raise self._fail(access, "is loaded whole, with no wait since its units were stored")
        if whole or (access.scalar and not lead):
            self.loaded.add(cell)

    def _stored(self, cell: Cell) -> bool:
        space, array, _, offset = cell
        known = self.taped if space is Space.TAPE else self.stored
        return any((space, array, step, offset) in known for step in range(_TURNS))

    def _store_rows(self, access: Access, rows: int) -> None:
        """Store every row of a matrix, or a vector, once per call."""
        for row in range(rows if access.region.space is Space.MATRIX else 1):
            offset = access.offset + row * access.region.row
            self._store(replace(access, offset=offset), 0, None)

    def _store(self, access: Access, turn: int, block: GateBlock | None) -> None:
        self._inside(access)
        space, cell = access.region.space, self._cell(access, turn)
        (self.taped if space is Space.TAPE else self.stored).add(cell)
        if space in _PRIVATE:
            return
        if cell in self.loaded:
            raise self._fail(access, "is stored, with no wait since all of its units were loaded")
        self.fresh[cell] = block

    def _phase(self, phase: Phase, turn: int) -> None:
        for segment in phase.segments:
            if segment.sync:
                self._wait()
            for store in segment.scalars:
                for access, whole in columns_of(store.value):
                    self._load(access, turn, None, whole=whole, lead=store.lead)
                self._store(store.access, turn, None)
                if store.lead:
                    self.led.add(self._cell(store.access, turn))
            for part in chain(*map(unrolled, segment.parts)):
                self._reads(part, turn)
                self._body(part.body, len(part.products), part.gate_block, turn)

    def _reads(self, part: Part, turn: int) -> None:
        """Check the loads of all units of a part: operands, reductions, other units' columns."""
        for product in part.products:
            for acc in product.accs:
                if len(acc) != len(product.operands):
                    raise VerifyError("an accumulation has no term for one of its operands")
                for term, operand in zip(acc, product.operands, strict=True):
                    k = term.matrix.rows if term.transposed else term.matrix.columns
                    n = term.matrix.columns if term.transposed else term.matrix.rows
                    size = self.layout.size(part.gate_block)
                    if (n, k) != (size, operand.units):
                        raise self._fail(operand, f"is multiplied by a matrix [{n}, {k}]")
                    self._load(term.matrix.access, turn, None, whole=True)
            for operand in product.operands:
                self._load(operand, turn, part.gate_block, whole=True)
        for statement in part.body:
            if isinstance(statement, Let):
                for access, whole in columns_of(statement.value):
                    if whole:
                        self._load(access, turn, part.gate_block, whole=True)
            elif isinstance(statement, Multiply):
                for access in (statement.left, statement.right):
                    self._load(access, turn, part.gate_block, whole=True)

    def _body(
        self, body: Iterable[Statement], products: int, block: GateBlock | None, turn: int
    ) -> None:
        count = 0
        stored: set[Cell] = set()
        for statement in body:
            if isinstance(statement, Store):
                cell = self._cell(statement.access, turn)
                if cell in stored:
                    raise self._fail(statement.access, "is stored twice: the first value is lost")
                stored.add(cell)
            match statement:
                case Let(value) | Store(_, value):
                    for part in _leaves(value):
                        if isinstance(part, Ref) and not 0 <= part.index < count:
                            raise VerifyError(f"x{part.index} is named before it is computed")
                        if isinstance(part, Acc) and not 0 <= part.product < products:
                            raise VerifyError(f"product{part.product} is of no part")
                    for access, whole in columns_of(value):
                        if not whole:
                            self._load(access, turn, block, whole=False)
                    if isinstance(statement, Store):
                        self._store(statement.access, turn, block)
                    else:
                        count += 1
                case Accumulate(targets, value):
                    if isinstance(value, Ref) and not 0 <= value.index < count:
                        raise VerifyError(f"x{value.index} is named before it is computed")
                    for access in targets:
                        self._store(access, turn, block)
                case Multiply(targets):
                    for access in targets:
                        self._store(access, turn, block)
                case _:
                    pass

    def _once(self, computed: WeightRate) -> None:
        """Worker 0 alone computes it."""
        match computed:
            case Copy(target, source):
                reads, rows = [source], 1
            case Once(rows, _, Store(target, value)):
                reads = [access for access, _ in columns_of(value)]
            case MatVec(target, matrix, vector):
                reads, rows = [matrix.access, vector], 1
            case Outer(Matrix(target, rows), left, right):
                reads = [left, right]
            case Transpose(Matrix(target, rows), Matrix(source)):
                reads = [source]
        for access in reads:
            self._load(access, 0, None, whole=False)
        self._store_rows(target, rows)


def _leaves(value: Value) -> Iterator[Value]:
    if isinstance(value, Op | Affine):
        for arg in value.args:
            yield from _leaves(arg)
    else:
        yield value
