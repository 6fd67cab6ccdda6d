"""What a step returns, as values of a cell."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from elman.errors import StepError
from elman.frontend.trace import Tracer, lift
from elman.ir.graph import Rate, node
from elman.ir.types import Shape as Dims
from elman.steps.arrays import slicing
from elman.steps.arrays.array import Array, MatrixError, broadcast
from elman.steps.reading.reader import Opaque, Reader
from elman.steps.reading.reading import Leaf, Result
from elman.steps.recording.tape import Place, Ref


class Results:
    """What a step returns, as values of the cell.

    Attributes:
        outputs: values of the cell with their declared shapes.
        next_states: of the cell's states.
        carries, ys, exported, states: see :class:`Reading`.
    """

    def __init__(self, reader: Reader) -> None:
        self.outputs: list[tuple[Tracer, Dims]] = []
        self.next_states: list[Tracer] = []
        self.states: list[list[Leaf]] = []
        self._reader, self._exported = reader, dict[Any, int]()
        tape = reader.tape
        self.carries = [self._carry(*pair) for pair in zip(tape.results, tape.carries)]
        self.ys = [self._y(ref) for ref in tape.results[len(tape.carries) :]]
        self.exported: dict[Ref, Result] = {}
        for at in reader.live:
            if at in reader.opaque and reader.rate_of_entry(at) == Rate.STATE:
                for ref in tape.entries[at].given:
                    is_opaque = isinstance(reader.value(ref), Opaque)
                    if not is_opaque and reader.rate_of([ref]) == Rate.STATE:
                        self.exported.setdefault(ref, self._y(ref))

    def _carry(self, ref: Ref, before: Ref) -> Result:
        reader = self._reader
        leaves: list[Leaf] = []
        self.states.append(leaves)
        if before in reader.handed_on:
            return self._result("static", ref)
        after, start = reader.array(ref), reader.array(before)
        if (after.shape, after.batch) != (start.shape, start.batch):
            raise StepError(
                f"a state of shape {[*start.shape]} becomes one of {[*after.shape]}",
                "a step returns states of the shapes that it takes",
            )
        parts = self._next(after, start, before, (), leaves)
        return self._result("cell", ref, parts, start.base)

    def _result(self, kind: str, ref: Any, parts: Any = None, base: tuple[int, ...] = ()) -> Result:
        tape = self._reader.tape
        return Result(kind, ref, parts, tape.place(ref), base, tape.kind(ref))

    def _y(self, ref: Any) -> Result:
        if not isinstance(ref, Ref):
            return Result("plain", ref, None, Place((), None), (), torch.float32)
        value = self._reader.value(ref)
        not_read = value is None and self._reader.rate_of([ref]) < Rate.STATE
        if not_read or isinstance(value, Opaque):
            return self._result("outside", ref)
        array = self._reader.array(ref)
        return self._result("cell", ref, self._output(array), array.base)

    def _output(self, array: Array) -> Any:
        """Where the values of an array stand among the outputs of the cell, nested by slices."""
        if array.slices:
            rows = [part if part.matrix else slicing.to_flat(part) for part in array.value]
            inner = broadcast(*[row.base for row in rows])
            return [self._output(row if row.matrix else slicing.held(row, inner)) for row in rows]
        key = lift(array.value) if array.number is None else array.number
        if key not in self._exported:
            self._exported[key] = len(self.outputs)
            self.outputs.append((_tracer(array), _dims(array)))
        return self._exported[key]

    def _next(
        self, after: Array, start: Array, ref: Ref, at: tuple[int, ...], leaves: list[Leaf]
    ) -> Any:
        """Note a next state in the form of the state: where it stands among the next states."""
        if start.slices:
            first = start.axes[0]
            rows = zip(slicing.unbind(after, first), slicing.unbind(start, first), strict=True)
            return [
                self._next(row, like, ref, (*at, k), leaves) for k, (row, like) in enumerate(rows)
            ]
        self.next_states.append(_like(after, start))
        leaves.append(self._reader.leaves[ref, at])
        return len(self.next_states) - 1


def _tracer(array: Array) -> Tracer:
    """A value that a cell returns."""
    value = lift(array.value)
    if value.op == "const":  # which no layer returns
        value = node("lin", (value,), ((1.0,), 0.0), (), value.where)
    return Tracer(value)


def _dims(array: Array) -> Dims:
    """The declared shape of an output."""
    if array.uniform:
        return ()
    sizes = [array.base[axis] for axis in array.axes]
    if array.matrix:
        return (((sizes[0], sizes[1]),),)
    return ((prod(array.base),),)


def _like(after: Array, start: Array) -> Tracer:
    """A next state in the form of the state: a scalar, a vector, a matrix."""
    if start.uniform:
        if not after.uniform:
            raise StepError("a scalar state becomes a vector")
        return _tracer(after)
    if start.matrix:
        if after.slices:
            raise StepError("a state becomes slices")
        if after.uniform or after.base != start.base:
            return slicing.whole_matrix(after, start.base)
        return Tracer(lift(slicing.to_matrix(after).value))
    if after.matrix and start.leaves:
        raise MatrixError(start.leaves)
    return slicing.held(slicing.to_flat(after), start.base).value
