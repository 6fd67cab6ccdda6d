"""A machine that runs lowered programs without a compiler, on workers that may be late.

Memory begins as NaN. Between two waits workers run one after another, in any order: who reads what
another has not stored yet, or has stored over, computes something else. So a race shows without
threads, and an offset that is off without a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elman.engines.arrays import Arrays
from elman.ir.draws import SCALE, drawn
from elman.ir.evaluate import MEANING
from elman.ir.types import GateBlock
from elman.lowered.groups import unrolled
from elman.lowered.lower import Lowered, lower
from elman.lowered.types import (
    Acc,
    Access,
    Across,
    Affine,
    Const,
    Copy,
    Direction,
    Let,
    Load,
    Matrix,
    MatVec,
    Once,
    Op,
    Outer,
    Part,
    Phase,
    Reduce,
    Ref,
    Segment,
    Space,
    Stage,
    Store,
    Transpose,
    Value,
    WeightRate,
)
from elman.plan.build import output_is_state, program
from helpers import Case, job_of
from lowered_verify import phases_of

F64 = torch.float64
XP = Arrays(F64, torch.device("cpu"))


def lowered_of(case: Case, lanes: int = 4, **options) -> Lowered:
    """The program of a case that wants every gradient, in vectors of so many lanes."""
    job = job_of(case, **options)
    return lower(program(job.pair, job.spec), lanes)


@dataclass(frozen=True)
class Rows:
    """Rows of memory: step and sample of each, and the first step of the chunk."""

    t: Tensor
    b: Tensor
    t0: int


def nan(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan, dtype=F64)


class Machine:
    """One call of a case: forward, then backward, in chunks of steps.

    Args:
        lowered, case: what is run, and its arguments.
        workers: who share the units of each step and of each batched phase.
        order: in which workers run between two waits.
        chunk: steps.
    """

    def __init__(
        self,
        lowered: Lowered,
        case: Case,
        workers: int = 1,
        order: Callable[[int], Iterable[int]] = range,
        chunk: int = 3,
    ) -> None:
        self.lowered, self.layout, self.case = lowered, lowered.layout, case
        self.workers, self.order, self.chunk = workers, order, chunk
        self.T, self.B, *_ = case.d_output.shape
        layout, T, B = self.layout, self.T, self.B
        self.arrays: dict[tuple[Space, int], Tensor] = {}
        for space, values in ((Space.INPUT, case.inputs), (Space.WEIGHT, case.weights)):
            used = [values[name] for name in values if space is Space.INPUT or name in self._names]
            for k, value in enumerate(used):
                rows = value.reshape(T * B, -1) if space is Space.INPUT else value.reshape(-1)
                self.arrays[space, k] = rows.to(F64)
        for k, value in enumerate(case.states.values()):
            rows = nan(B if k in layout.held else (T + 1) * B, layout.state_widths[k])
            rows[:B] = value.reshape(B, -1)
            self.arrays[Space.STATE, k] = rows
        self.arrays[Space.D_OUTPUT, 0] = case.d_output.reshape(T * B, -1).to(F64)
        self.arrays[Space.OUTPUT, 0] = nan(T * B, layout.output_width)
        self.arrays[Space.TAPE, 0] = nan(T * B, layout.tape_row)
        self.values: list[Tensor] = []

    @property
    def _names(self) -> list[str]:
        return self.layout.weights.names

    def run(self) -> dict[str, Tensor]:
        """Output, last states and every gradient, by name."""
        case, layout, T, B = self.case, self.layout, self.T, self.B
        self._direction(self.lowered.forward)
        out = self.arrays[Space.OUTPUT, 0]
        if output_is_state(layout.program.pair):
            out = self.arrays[Space.STATE, 0][B:]
        results = {"out": out.reshape(case.d_output.shape)}
        for k, (name, value) in enumerate(case.states.items()):
            results[f"last {name}"] = self.arrays[Space.STATE, k][-B:].reshape(value.shape)
        if self.lowered.backward is None:
            return results
        step, d_inputs = layout.program.pair.step, layout.program.pair.d_inputs
        for k, name in enumerate(case.inputs):  # nothing is written where no gradient flows
            flows = all(d for x, d in zip(step.inputs, d_inputs, strict=True) if x.name == name)
            width = layout.input_widths[k]
            self.arrays[Space.D_INPUT, k] = (
                nan(T * B, width) if flows else torch.zeros(T * B, width, dtype=F64)
            )
        for k, name in enumerate(self._names):
            self.arrays[Space.D_WEIGHT, k] = nan(case.weights[name].numel())
        self._direction(self.lowered.backward)
        for k, (name, value) in enumerate(case.inputs.items()):
            results[f"d{name}"] = self.arrays[Space.D_INPUT, k].reshape(value.shape)
        for k, name in enumerate(self._names):
            d = self.arrays[Space.D_WEIGHT, k]
            results[f"d{name}"] = d.reshape(case.weights[name].shape)
        for k, (name, value) in enumerate(case.states.items()):
            columns = [i for i, column in enumerate(layout.states) if column.array == k]
            d = torch.cat([self._carried(i, 1) for i in columns], -1)
            results[f"d{name}"] = d.reshape(value.shape)
        return results

    def _carried(self, index: int, step: int) -> Tensor:
        """The cotangent of a state's column at the parity of a step: a view [B, units]."""
        layout, B = self.layout, self.B
        summed, width = layout.summed[index], layout.states[index].width
        rows = self.arrays[Space.SUMMED if summed else Space.CARRY, 0]
        first = 0 if summed else step % 2 * B
        return rows[first : first + B, layout.carry[index] :][:, :width]

    def _direction(self, direction: Direction) -> None:
        layout, T, B = self.layout, self.T, self.B
        self.arrays[Space.VECTOR, 0] = nan(direction.vectors)
        self.arrays[Space.MATRIX, 0] = nan(direction.matrices)
        self.arrays[Space.CARRY, 0] = nan(2 * B, layout.carry_row)
        self.arrays[Space.SUMMED, 0] = nan(B, layout.summed_row)
        backward = direction.name == "backward"
        for index, column in enumerate(layout.states if backward else ()):
            d_last = list(self.case.d_last.values())[column.array].reshape(B, -1)
            self._carried(index, T - 1)[:] = d_last[:, column.offset :][:, : column.width]
        for computed in direction.setup:
            self._once(computed)
        starts = range(0, T, self.chunk)
        for t0 in reversed(starts) if backward else starts:
            steps = list(range(t0, min(T, t0 + self.chunk)))
            self.arrays[Space.CHUNK, 0] = nan(len(steps) * B, direction.chunk_row)
            samples = torch.arange(B)
            t = torch.tensor(steps).repeat_interleave(B)
            every = Rows(t, samples.repeat(len(steps)), t0)
            each = [Rows(torch.full((B,), t), samples, t0) for t in steps]
            for stage in direction.stages:
                turns = [every] if stage is not Stage.STEPS else each[::-1] if backward else each
                for phase in phases_of(direction, stage):
                    self._phase(phase, turns)
                if stage is Stage.SUMS:
                    self._sums(direction, every, first=steps[-1] == T - 1)
        for computed in direction.finish:
            self._once(computed)

    def _sums(self, direction: Direction, every: Rows, *, first: bool) -> None:
        """The sums over the rows of a chunk; ``first``: whether no chunk was summed before."""
        for term in direction.sums:
            left = self._fetch(term.left, every, 0)
            if term.right is None:
                total, target = left.sum(0), self._row(term.target)
            else:
                total = left.T @ self._fetch(term.right, every, 0)
                target = self._matrix(term.target)
            target[:] = total if term.first and first else target + total

    def _phase(self, phase: Phase, turns: Sequence[Rows]) -> None:
        """A phase over the rows of each turn: what lies between two waits, worker by worker."""
        size = max((len(rows.t) for rows in turns), default=0)
        self.arrays[Space.SCRATCH, 0] = nan(2 * size, phase.scratch_row)
        for worker in range(self.workers):
            self.arrays[Space.SCALAR, worker] = nan(size, phase.scalars)
        run: list[tuple[Segment, Rows]] = []
        for rows in turns:
            for segment in phase.segments:
                if segment.sync:
                    self._workers(run)
                    run = []
                run.append((segment, rows))
        self._workers(run)

    def _workers(self, run: list[tuple[Segment, Rows]]) -> None:
        for worker in self.order(self.workers):
            for segment, rows in run:
                for store in segment.scalars:
                    if not store.lead or worker == 0:
                        value = self._value(store.value, rows, worker, slice(0, 1))
                        self._put(store.access, rows, worker, value, slice(0, 1))
                for part in segment.parts:
                    for group in unrolled(part):
                        self._part(group, rows, worker)

    def _share(self, gate_block: GateBlock, worker: int) -> slice:
        """A worker's units: whole vectors."""
        size, lanes = self.layout.size(gate_block), self.layout.lanes
        vectors = -(-size // lanes)
        edges = [vectors * k // self.workers * lanes for k in (worker, worker + 1)]
        return slice(min(edges[0], size), min(edges[1], size))

    def _part(self, part: Part, rows: Rows, worker: int) -> None:
        units = self._share(part.gate_block, worker)
        if units.start == units.stop:
            return
        products: list[list[Tensor]] = []
        for product in part.products:
            operands = [self._fetch(operand, rows, worker) for operand in product.operands]
            products.append([])
            for acc in product.accs:
                total = torch.zeros(len(rows.t), units.stop - units.start, dtype=F64)
                for term, operand in zip(acc, operands, strict=True):
                    W = self._matrix(term.matrix)
                    total = total + operand @ (W if term.transposed else W.T)[:, units]
                products[-1].append(total)
        self.values = []
        for statement in part.body:
            if isinstance(statement, Let):
                value = self._value(statement.value, rows, worker, units, products)
                self.values.append(value)
            elif isinstance(statement, Store):
                value = self._value(statement.value, rows, worker, units, products)
                self._put(statement.access, rows, worker, value, units)

    def _where(self, access: Access, rows: Rows, worker: int) -> tuple[Tensor, Tensor]:
        """The array of an access, and the indices of its rows."""
        region, B = access.region, self.B
        space, array, t, b = region.space, region.array, rows.t, rows.b
        if space in (Space.STATE, Space.GATHERED):
            index = b if array in self.layout.held else (t + access.step) * B + b
            return self.arrays[Space.STATE, array], index
        if space is Space.SCALAR:
            array = worker
        local = (t - rows.t0) * B + b if region.batched else b
        index = {
            Space.CARRY: (t + access.step) % 2 * B + b,
            Space.SUMMED: b,
            Space.CHUNK: (t - rows.t0) * B + b,
            Space.SCRATCH: local if region.batched else t % 2 * B + b,
            Space.SCALAR: local,
        }.get(space, t * B + b)
        return self.arrays[space, array], index

    def _fetch(self, access: Access, rows: Rows, worker: int) -> Tensor:
        """All units of a column [rows, units]."""
        if access.region.space is Space.VECTOR:
            return self._row(access).expand(len(rows.t), -1)
        array, index = self._where(access, rows, worker)
        return array[index, access.offset : access.offset + access.units]

    def _put(self, access: Access, rows: Rows, worker: int, value: Tensor, units: slice) -> None:
        array, index = self._where(access, rows, worker)
        first = access.offset + units.start
        array[index[:, None], torch.arange(first, access.offset + units.stop)] = value

    def _row(self, access: Access) -> Tensor:
        """A column of weight rate: a view [units]."""
        region = access.region
        array = self.arrays[region.space, region.array]
        return array[access.offset : access.offset + access.units]

    def _matrix(self, matrix: Matrix) -> Tensor:
        """A matrix in memory: a view [rows, columns]."""
        access = matrix.access
        array = self.arrays[access.region.space, access.region.array]
        size, strides = (matrix.rows, matrix.columns), (access.region.row, 1)
        return array.as_strided(size, strides, access.offset)

    def _value(
        self,
        value: Value,
        rows: Rows,
        worker: int,
        units: slice,
        products: Sequence[Sequence[Tensor]] = (),
    ) -> Tensor:
        """A value [rows, units], or [rows, 1] where it is a scalar."""

        def of(arg: Value) -> Tensor:
            return self._value(arg, rows, worker, units, products)

        match value:
            case Ref(index):
                return self.values[index]
            case Const(number):
                return torch.full((len(rows.t), 1), number, dtype=F64)
            case Load(access):
                column = self._fetch(access, rows, worker)
                return column if access.scalar else column[:, units]
            case Acc(product, index):
                return products[product][index]
            case Op("uniform", args, stream):
                high, low = (of(arg).to(torch.int64) for arg in args)
                return drawn(high, low, torch.arange(units.start, units.stop), stream) * SCALE
            case Op(name, args):
                return MEANING[name](XP, None, *map(of, args)).to(F64)
            case Affine(coefs, bias, args):
                return sum(
                    (c * of(arg) for c, arg in zip(coefs, args, strict=True)), of(Const(bias))
                )
            case Reduce(name, columns):
                every = torch.cat([self._fetch(column, rows, worker) for column in columns], -1)
                return MEANING[name](XP, None, every)[:, None]
            case Across(_, column):
                return self._across(value, self._fetch(column, rows, worker))[:, units]

    def _across(self, value: Across, column: Tensor) -> Tensor:
        size = value.groups * value.width
        if value.name == "cumsum":
            return column.flip(-1).cumsum(-1).flip(-1) if value.reverse else column.cumsum(-1)
        if value.name not in ("spread", "one_hot"):
            return MEANING[value.name](XP, None, column.reshape(-1, value.groups, value.width))
        wide = column.repeat_interleave(value.width, -1)
        if value.name == "spread":
            return wide
        places = value.shift + torch.arange(size, dtype=F64)
        return ((places if value.column.scalar else places % value.width) == wide).to(F64)

    def _once(self, computed: WeightRate) -> None:
        match computed:
            case Copy(target, source):
                self._row(target)[:] = self._row(source)
            case MatVec(target, matrix, vector, transposed):
                W = self._matrix(matrix)
                self._row(target)[:] = (W.T if transposed else W) @ self._row(vector)
            case Outer(target, left, right):
                self._matrix(target)[:] = torch.outer(self._row(left), self._row(right))
            case Transpose(target, source):
                self._matrix(target)[:] = self._matrix(source).T
            case Once(rows, _, store):
                self._store_once(rows, store)

    def _store_once(self, rows: int, store: Store) -> None:
        access = store.access
        units = 1 if access.scalar else access.units

        def of(value: Value) -> Tensor:
            match value:
                case Load(column) if column.region.space in (Space.VECTOR,):
                    return self._row(column)
                case Load(column):
                    return self._matrix(Matrix(column, rows, column.units))
                case Const(number):
                    return torch.full((1,), number, dtype=F64)
                case Op(name, args):
                    return MEANING[name](XP, None, *map(of, args)).to(F64)
                case Affine(coefs, bias, args):
                    terms = (c * of(arg) for c, arg in zip(coefs, args, strict=True))
                    return sum(terms, torch.full((1,), bias, dtype=F64))
                case Reduce(name, columns):
                    return MEANING[name](XP, None, torch.cat([*map(self._row, columns)]))[None]
                case Across(_, column):
                    return self._across(value, self._row(column)[None])[0]
                case _:
                    raise AssertionError(f"{value} is of no weight rate")

        self._matrix(Matrix(access, rows, units))[:] = of(store.value)
