"""The language of a lowered program: memory, values, statements, loops.

A lowered program is data that a printer spells and decides nothing about. Everything is immutable;
offsets and sizes are numbers. One row is one sample at one step; a *unit* is an element of a gate
block. What is named by T, B or the workers of a call stays symbolic: rows, not offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from elman.ir.types import GateBlock

Axis = Literal["rows", "columns"]


class Space(Enum):
    """Kinds of memory, by whom it belongs to and how its rows are found."""

    INPUT = "in"  # caller's, row (t, b), any strides
    STATE = "st"  # sequence of a state, row (t, b); step +1: the state after the step
    LOCAL = "local"  # states that are matrices, of the worker's sample: of two steps, alternating
    REPLAYED = "replayed"  # the same of all steps of a chunk, computed again by a backward
    GATHERED = "prev"  # states before the rows of a chunk, in the chunk's order
    OUTPUT = "out"  # row (t, b)
    D_OUTPUT = "dy"  # caller's, row (t, b), any strides
    D_INPUT = "din"  # row (t, b)
    CARRY = (
        "carry"  # cotangents of states, row b, of two steps, alternating; step +1: of step t + 1
    )
    SUMMED = "summed"  # the same of states that pass through: one row b, summed where it lies
    TAPE = "tape"  # row (t, b), from forward to backward
    CHUNK = "chunk"  # row (t, b) within a chunk
    SCRATCH = "scratch"  # row b of one step (of two, alternating), or of a batched phase
    SCALAR = "scalar"  # row b, of each worker
    VECTOR = "vec"  # once per call: loop-invariant vectors and scalars
    MATRIX = "mat"  # once per call: computed matrices, finished sums
    WEIGHT = "w"  # caller's weights
    D_WEIGHT = "dw"  # their gradients


@dataclass(frozen=True)
class Region:
    """Memory whose rows are alike.

    Attributes:
        space: kind.
        row: elements from one row to the next; 0: the caller says.
        array: number among the caller's arrays of this kind.
        batched: whether a phase over T·B reads it, not a step of the loop.
        always: of gathered states: whether they are gathered even where all rows lie in order,
            because they have one row per sample.
    """

    space: Space
    row: int
    array: int = 0
    batched: bool = False
    always: bool = False


@dataclass(frozen=True)
class Access:
    """A column of a region: the units of one value in a row.

    Attributes:
        region: the memory.
        offset: first element of the value in a row.
        units: of the value; 1 for a scalar.
        width: elements that belong to the value where a vector may reach beyond them; None: padded
            to whole vectors.
        step: +1: rows of the next step of time.
        scalar: whether the value is one number per row.
        group: elements from the column of one group of a part to that of the next.
    """

    region: Region
    offset: int
    units: int
    width: int | None = None
    step: int = 0
    scalar: bool = False
    group: int = 0


# --- values: immutable, one vector of units (or a scalar, broadcast) in a row ---------------------


@dataclass(frozen=True)
class Load:
    """The value in memory."""

    access: Access


@dataclass(frozen=True)
class Const:
    """The same number everywhere."""

    number: float


@dataclass(frozen=True)
class Ref:
    """The value of an earlier :class:`Let` of the same body, by its place among these."""

    index: int


@dataclass(frozen=True)
class Acc:
    """A column of a part's products: the accumulation ``index`` of product ``product``."""

    product: int
    index: int


@dataclass(frozen=True)
class Op:
    """An elementwise operation of ``ir/ops.py``; ``stream``: of random bits."""

    name: str
    args: tuple[Value, ...]
    stream: int = 0


@dataclass(frozen=True)
class Affine:
    """``bias + Σ coef · arg``, in this order."""

    coefs: tuple[float, ...]
    bias: float
    args: tuple[Value, ...]

    @property
    def is_sum(self) -> bool:
        """Whether it is the sum of its arguments."""
        return self.bias == 0.0 and all(coef == 1.0 for coef in self.coefs)


@dataclass(frozen=True)
class Reduce:
    """A reduction over all units of some columns: a scalar.

    Attributes:
        name: ``sum``, ``mean``, ``var``, ``amax``, ``argmax``.
        columns: read from memory; of a matrix, one for each row.
        mean: the columns' mean where it is at hand, for ``var``.
    """

    name: str
    columns: tuple[Access, ...]
    mean: Value | None = None


@dataclass(frozen=True)
class Across:
    """A vector whose units read other units of one column: reductions of groups, ``spread``,
    ``one_hot``, ``cumsum``, ``place``, ``cut``.

    Attributes:
        name: the op.
        column: read from memory.
        groups, width: how many groups the longer of both vectors has, and units of each; of
            ``place`` and ``cut``: 1, and units of the shorter vector.
        shift: of ``one_hot``: units counted before; of ``place`` and ``cut``: units of the longer
            vector before those of the shorter.
        reverse: of ``cumsum``: from the last unit to the first.
    """

    name: str
    column: Access
    groups: int
    width: int
    shift: int = 0
    reverse: bool = False


@dataclass(frozen=True)
class Along:
    """In a part over a matrix: a vector along one axis, the same for all of the other.

    Attributes:
        access: read from memory.
        axis: ``rows``: a number per row; ``columns``: a number per column.
    """

    access: Access
    axis: Axis


@dataclass(frozen=True)
class Moved:
    """In a part over a matrix: the transpose of another one, or its rows, moved.

    Attributes:
        name: the op: ``swapaxes``, ``roll``, ``place``, ``cut``.
        access: read from memory.
        rows, columns: of that matrix.
        down: of ``roll``: how many rows they are moved by, round the end; of ``place`` and ``cut``:
            rows of the higher matrix above those of the lower one.
    """

    name: str
    access: Access
    rows: int
    columns: int
    down: int = 0


Value = Load | Const | Ref | Acc | Op | Affine | Reduce | Across | Along | Moved


def columns_of(value: Value) -> Iterator[tuple[Access, bool]]:
    """Columns that a value loads, and whether all of their units."""
    match value:
        case Load(access):
            yield access, False
        case Across(_, access) | Along(access) | Moved(_, access):
            yield access, True
        case Reduce(_, columns, mean):
            yield from ((column, True) for column in columns)
            if mean is not None:
                yield from columns_of(mean)
        case Op(_, args) | Affine(_, _, args):
            for arg in args:
                yield from columns_of(arg)
        case _:
            pass


# --- statements -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Let:
    """Compute a value; :class:`Ref` names it."""

    value: Value


@dataclass(frozen=True)
class Store:
    """Write a value; ``lead``: by one of the workers that compute it."""

    access: Access
    value: Value
    lead: bool = False


@dataclass(frozen=True)
class Prefetch:
    """Ask for a column of the row that the next step of the loop reads or writes."""

    access: Access
    write: bool


@dataclass(frozen=True)
class Accumulate:
    """In a part over a matrix: sum a value along an axis; the result is stored behind the part's
    loop.

    Attributes:
        accesses: where it is stored.
        value: an element.
        axis: ``rows``: a sum per row; ``columns``: per column; None: one of all elements.
    """

    accesses: tuple[Access, ...]
    value: Value
    axis: Axis | None


@dataclass(frozen=True)
class Multiply:
    """In a part over a matrix, behind its loop: the product of two matrices of the sample.

    Attributes:
        accesses: where it is stored, [rows, columns].
        left, right: read from memory: [rows, inner] and [inner, columns], or transposes of these.
        rows, inner, columns: sizes.
        transposed: whether the left one, and the right one, lie as transposes.
    """

    accesses: tuple[Access, ...]
    left: Access
    right: Access
    rows: int
    inner: int
    columns: int
    transposed: tuple[bool, bool]


Statement = Let | Store | Prefetch | Accumulate | Multiply


@dataclass(frozen=True)
class Matrix:
    """A matrix of weight rate in memory: [units of the result, units of the operand], or the
    transpose of that.

    Attributes:
        access: its rows.
        rows, columns: as it lies.
    """

    access: Access
    rows: int
    columns: int


@dataclass(frozen=True)
class Term:
    """``matrix @ operand``, or with the matrix's transpose."""

    matrix: Matrix
    transposed: bool


@dataclass(frozen=True, eq=False)
class Product:
    """Products joined into one: accumulation a is the sum over k of ``accs[a][k] @ operands[k]``.

    Attributes:
        gate_block: of the results.
        operands: columns in rows of memory.
        accs: a term per operand.
        spikes: by operand: whether most of its elements may be 0 and the others 1.
    """

    gate_block: GateBlock
    operands: tuple[Access, ...]
    accs: tuple[tuple[Term, ...], ...]
    spikes: tuple[bool, ...]


# --- loops ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Part:
    """Products into a gate block, then a body for each vector of its units, in every row.

    Attributes:
        gate_block: whose units.
        products, body: of the first group.
        groups: how many there are; accesses of further ones lie at their distance.
        axes: rows and columns of the gate block, if it is a matrix: vectors are then of columns.
    """

    gate_block: GateBlock
    products: tuple[Product, ...]
    body: tuple[Statement, ...]
    groups: int = 1
    axes: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class Segment:
    """Work of one worker between two reads of units of other workers.

    Attributes:
        sync: whether others' units must be complete before it, where units are shared out.
        scalars: for each row, by every worker.
        parts: loops over rows and units.
    """

    sync: bool
    scalars: tuple[Store, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, eq=False)
class Phase:
    """Segments in order, batched over T·B or one step of the loop.

    Attributes:
        name: ``before``, ``step`` or ``after``.
        scratch_row: elements of its scratch per row.
        scalars: of a row.
    """

    name: str
    segments: tuple[Segment, ...]
    scratch_row: int
    scalars: int


@dataclass(frozen=True, eq=False)
class Once:
    """A store for each row and vector of units, once per call."""

    rows: int
    units: int
    store: Store


@dataclass(frozen=True, eq=False)
class Copy:
    """Copy a weight's vector (or scalar) to where whole vectors of it can be read."""

    target: Access
    source: Access


@dataclass(frozen=True, eq=False)
class MatVec:
    """``target = matrix @ vector`` (or its transpose), once per call."""

    target: Access
    matrix: Matrix
    vector: Access
    transposed: bool


@dataclass(frozen=True, eq=False)
class Outer:
    """``target = left ⊗ right``, once per call."""

    target: Matrix
    left: Access
    right: Access


@dataclass(frozen=True, eq=False)
class Transpose:
    """``target = sourceᵀ``, once per call."""

    target: Matrix
    source: Matrix


WeightRate = Once | Copy | MatVec | Outer | Transpose


@dataclass(frozen=True, eq=False)
class RowSum:
    """A term of a weight's gradient: Σ over the rows of a chunk of ``left ⊗ right``, or ``left``.

    Attributes:
        target: where it is summed up.
        left, right: columns in rows of the chunk.
        first: whether it is the first term of its target, which nobody has set to 0 before.
        spikes: whether most of the right one's elements may be 0 and the others 1.
    """

    target: Matrix | Access
    left: Access
    right: Access | None
    first: bool
    spikes: bool = False


class Stage(Enum):
    """Work on the rows of a chunk that workers share; behind each stage they wait for one
    another."""

    GATHER = "gather"  # the states before each row, where the rows of all steps do not lie in order
    BEFORE = "before"  # the phases over all rows of the chunk
    STEPS = "steps"
    AFTER = "after"
    SUMS = "sums"


@dataclass(frozen=True, eq=False)
class Direction:
    """A program's way through time: weight-rate values, then in chunks: batched, loop, batched.

    Attributes:
        name: ``forward`` or ``backward``.
        phases: before, step, after.
        replay: of a backward: one step of states that are matrices, before the chunk's steps.
        setup: once per call, before all else.
        gathers: states whose rows a batched phase reads as of before their step; ``always``:
            even where the rows of all steps lie in order.
        chunk_row: elements of a row of the chunk.
        sums: after each chunk.
        finish: once per call, after all else.
        vectors, matrices: elements of memory of weight rate.
        sample_by_sample: whether the phases before and after a chunk's steps run for one sample,
            step by step, before the next: nothing reads rows of several steps or samples at once.
    """

    name: str
    phases: tuple[Phase, Phase, Phase]
    setup: tuple[WeightRate, ...]
    gathers: bool
    gathers_always: bool
    chunk_row: int
    sums: tuple[RowSum, ...]
    finish: tuple[WeightRate, ...]
    vectors: int
    matrices: int
    replay: Phase | None = None
    sample_by_sample: bool = False

    @property
    def loops(self) -> tuple[Phase, ...]:
        """The phases that run step by step."""
        return self.phases[1:2] if self.replay is None else (self.replay, self.phases[1])

    @property
    def all_phases(self) -> tuple[Phase, ...]:
        """In the order in which they run."""
        before, _, after = self.phases
        return before, *self.loops, after

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of each chunk in order. What a forward gathers is of its own steps; a backward
        finds the states of all steps."""
        gather = (Stage.GATHER,) if self.gathers else ()
        if self.name == "forward":
            return (Stage.BEFORE, Stage.STEPS, *gather, Stage.AFTER)
        return (*gather, Stage.BEFORE, Stage.STEPS, Stage.AFTER, Stage.SUMS)

    @property
    def parts(self) -> Iterator[Part]:
        """The parts of all phases."""
        for phase in self.all_phases:
            for segment in phase.segments:
                yield from segment.parts
