"""Evaluates a tape with tracers, and leaves to torch what cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.errors import ShapeError, StepError, TraceError
from elman.frontend.dims import Cuts, UncutError, cut_shape
from elman.frontend.functions import where
from elman.frontend.lines import written_at
from elman.frontend.signature import Declared
from elman.frontend.trace import Tracer
from elman.ir.graph import Rate, node
from elman.ir.types import Shape as Dims
from elman.steps.arrays import slicing
from elman.steps.arrays.arithmetic import combine
from elman.steps.arrays.array import MOST_SLICES, Array, MatrixError, drop_axis, number
from elman.steps.operations.pointwise import ELEMENTWISE, own_gradient, stop
from elman.steps.operations.table import BY_CONDITION, Facts, find
from elman.steps.reading.reading import Leaf
from elman.steps.recording.tape import (
    OWN_GRADIENT,
    Entry,
    Place,
    Ref,
    Tape,
    is_random,
    is_ref,
    refs_of,
)
from elman.torch_internals import pytree


class Selected(NamedTuple):
    """What an operation takes of a value by a condition, old[condition]: a vector of as many
    numbers as hold it, which only elementwise operations and the write to the same places may read.

    Attributes:
        array: at all places; 1 before the first operation where the condition does not hold.
        condition: of the selection.
    """

    array: Array
    condition: Ref


class Opaque(NamedTuple):
    """A value that torch computes: at this rate."""

    rate: Rate


class Reader:
    """Evaluates a tape with tracers.

    Args:
        tape, name, names: as of :func:`read`.
        matrices: names of leaves of two axes that are matrices of each sample.
    """

    def __init__(
        self, tape: Tape, name: str, names: Mapping[int, str], matrices: frozenset[str]
    ) -> None:
        self.tape, self.name, self._names, self._matrices = tape, name, names, matrices
        results = refs_of(tape.results)
        self.live = tape.needed(range(len(tape.entries)), results)
        self._used = {*results, *[ref for at in self.live for ref in tape.entries[at].given]}
        after = zip(tape.carries, tape.results)
        self.handed_on = [before for before, ref in after if ref == before]
        kinds = map(tape.kind, tape.carries)
        self._dtype = next((kind for kind in kinds if kind.is_floating_point), None)
        self.leaves: dict[tuple[Ref | None, tuple[int, ...]], Leaf] = {}  # by reference and slice
        self.opaque: set[int] = set()  # entries
        self.reasons: dict[Ref, StepError] = {}
        self._rates: dict[Ref, Rate] = {}
        self._given: Mapping[str, Tracer] | None = None
        self._cuts: Cuts = {}
        self._values: dict[Ref, Array | Opaque | Selected] = {}
        self._entering: dict[Ref, Array] = {}  # what torch computes, as arguments of the cell

    # ---- one evaluation

    def evaluate(self, cuts: Cuts, given: Mapping[str, Tracer] | None = None) -> None:
        """Give every value of the tape its array.

        Args:
            cuts: how numbers are split.
            given: the tracers of leaves, by name; None: leaves are found, and what cannot be read.
        """
        self._cuts, self._given = cuts, given
        self._values, self._entering, tape = {}, {}, self.tape
        self._rates = dict.fromkeys(tape.carries, Rate.STATE)
        self._rates.update(dict.fromkeys(map(Ref, (*tape.constants, *tape.captured)), Rate.WEIGHT))
        per_sample = map(Ref, tape.per_sample)
        self._rates.update(dict.fromkeys((*per_sample, *tape.inputs, *self.handed_on), Rate.INPUT))
        for at in self.live:
            self._evaluate_entry(at, tape.entries[at])

    def _evaluate_entry(self, at: int, entry: Entry) -> None:
        refs = entry.given
        rate = self.rate_of(refs)
        if is_random(entry.op):
            rate = max(rate, Rate.INPUT)
        if any(map(self._has_samples, refs_of(entry.results))):
            rate = max(rate, Rate.INPUT)
        opaque = [v for ref in refs if isinstance(v := self._values.get(ref), Opaque)]
        if any(v.rate == rate for v in opaque):
            reason = next((self.reasons[ref] for ref in refs if ref in self.reasons), None)
            self._set_opaque(at, rate, reason)
            return
        kept = rate == Rate.WEIGHT and any(
            (kind := self.tape.kind(ref)).is_floating_point and kind != self._dtype
            for ref in refs_of(entry.results)
        )  # numbers that torch rounds to another type than the formula's
        if kept or (self._given is not None and at in self.opaque):
            self._set_opaque(at, rate, None)
            return
        try:
            with written_at(entry.where):
                values = self._read(entry)
        except (UncutError, MatrixError):
            raise
        except Exception as error:  # of a row that does not know such arguments
            known = isinstance(error, (StepError, TraceError, ShapeError))
            reason = str(error).partition("\n")[0] if known else "elman has no such form of it"
            said = StepError(f"{shown(entry)}: {reason}", _hint_of(error), at=entry.where)
            self._set_opaque(at, rate, said)
            return
        given = values if type(values) in (tuple, list) else [values]
        for ref, value in zip(pytree.tree_leaves(entry.results, is_leaf=is_ref), given):
            if isinstance(ref, Ref):
                if entry.stops and isinstance(value, Selected):
                    value = value._replace(array=combine(stop, value.array))
                elif entry.stops:
                    value = combine(stop, value)
                self._values[ref] = value
                self._rates[ref] = rate

    def _set_opaque(self, at: int, rate: Rate, reason: StepError | None) -> None:
        """Leave an operation to torch, for all steps' samples at once, or once.

        Raises:
            StepError: it is not of each sample alone.
        """
        entry = self.tape.entries[at]
        results = refs_of(entry.results)
        changing = [r for r in entry.given if self._rates[r] > Rate.WEIGHT]
        if rate == Rate.INPUT and not changing and not is_random(entry.op):
            raise StepError(f"{shown(entry)} is of the number of samples", at=entry.where)
        for ref in (*results, *changing) if rate > Rate.WEIGHT else ():
            if ref in self._used and not self._has_samples(ref):
                raise reason or StepError(f"{shown(entry)} joins samples", at=entry.where)
        self.opaque.add(at)
        for ref in results:
            self._values[ref] = Opaque(rate)
            self._rates[ref] = rate
            if reason is not None:
                self.reasons[ref] = reason

    def _read(self, entry: Entry) -> Any:
        """The arrays of an operation."""
        if entry.op == OWN_GRADIENT:
            self._condition(entry)  # refuses values that one selected
            value, inputs, slopes = pytree.tree_map(self._argument, entry.args, is_leaf=is_ref)
            return own_gradient(value, inputs, slopes)
        row = find(entry.name)
        if row is None:
            raise StepError("elman has no such operation", _ELSEWHERE)
        results = refs_of(entry.results)
        if not results:
            raise StepError("it returns no tensor")
        name = entry.name.partition(".")[0]
        by_condition = {"index": self._select, "index_put": self._put}.get(name)
        done = None if by_condition is None else by_condition(entry)
        if done is not None:
            return done
        condition = self._condition(entry)
        place = self.tape.place(results[0]) if condition is None else Place((), None)
        kinds = [*map(self.tape.kind, (results[0], *entry.given))]
        facts = Facts(*place, kinds[0], tuple(kinds[1:]))
        argument = self._index if name in _INDEXED else self._argument
        args, kwargs = pytree.tree_map(argument, (entry.args, entry.kwargs), is_leaf=is_ref)
        kwargs = {key: value for key, value in kwargs.items() if key not in _WITHOUT_MEANING}
        if facts.dtype == torch.float32 and self._dtype == torch.float64:
            args = pytree.tree_map_only(float, _rounded, args)
        result = row(facts, *args, **kwargs)
        return result if condition is None else Selected(result, condition)

    def _argument(self, value: Any) -> Any:
        known = self._values.get(value) if isinstance(value, Ref) else None
        if isinstance(known, Selected):  # its operation is elementwise: see _condition
            return known.array
        return self.array(value) if isinstance(value, Ref) else value

    def _select(self, entry: Entry) -> Selected | None:
        """The values old[condition]; None: the operation takes constant places.

        Raises:
            StepError: the condition is not one of each element.
        """
        old, conditions = entry.args[:2]
        condition = conditions[0] if len(conditions) == 1 else None
        if (
            not isinstance(condition, Ref)
            or self.tape.kind(condition) != torch.bool
            or isinstance(self._index(condition), Tensor)
        ):
            return None
        if self._shape(condition) != self._shape(old):
            raise StepError("it takes parts of samples by a condition", BY_CONDITION)
        # 1 elsewhere, whose root, logarithm and quotient are finite: no NaN reaches a gradient
        array = combine(lambda c, v: where(c, v, 1.0), self.array(condition), self.array(old))
        return Selected(array, condition)

    def _put(self, entry: Entry) -> Array | None:
        """The result of old[condition] = what the same condition selected; None: of other values.

        Raises:
            StepError: another condition selected them.
        """
        old, places, new, *accumulates = entry.args
        selected = self._values.get(new) if isinstance(new, Ref) else None
        if not isinstance(selected, Selected):
            return None
        if [*places] != [selected.condition] or any(accumulates):
            raise StepError(_SELECTED, BY_CONDITION)
        return combine(where, self.array(selected.condition), selected.array, self.array(old))

    def _condition(self, entry: Entry) -> Ref | None:
        """The condition that selected the values which an operation reads; None: it reads none.

        Raises:
            StepError: it is not elementwise, or reads values of several conditions, or others.
        """
        given = {ref: self._values.get(ref) for ref in entry.given}
        selected = {ref: v.condition for ref, v in given.items() if isinstance(v, Selected)}
        if not selected:
            return None
        alone = all(ref in selected or not self._shape(ref) for ref in given)
        if (
            len({*selected.values()}) > 1
            or entry.name.partition(".")[0] not in ELEMENTWISE
            or not alone
        ):
            raise StepError(_SELECTED, BY_CONDITION)
        return next(iter(selected.values()))

    def _shape(self, ref: Ref) -> torch.Size:
        return self.tape.tensors[ref.number].shape

    def _index(self, value: Any) -> Any:
        """An argument of an operation that takes places: those that are constant as they are."""
        if isinstance(value, Ref):
            known = {**self.tape.captured, **self.tape.constants}.get(value.number)
            if known is not None and not known.is_floating_point():
                if value.number in self.tape.captured:
                    self.tape.places.add(value.number)
                return known
        return self._argument(value)

    def _has_samples(self, ref: Ref) -> bool:
        """Whether a value has one axis of samples."""
        try:
            return self.tape.place(ref).batch is not None
        except StepError:
            return False

    # ---- values

    def value(self, ref: Ref) -> Array | Opaque | Selected | None:
        """What was found of a value; None of one that the step is given and nothing has read."""
        return self._values.get(ref)

    def rate_of(self, refs: Sequence[Ref]) -> Rate:
        """How often some values change."""
        return max([self._rates[ref] for ref in refs], default=Rate.WEIGHT)

    def rate_of_entry(self, at: int) -> Rate:
        """How often the results of an operation change."""
        return self.rate_of(refs_of(self.tape.entries[at].results))

    def array(self, ref: Ref) -> Array:
        """The array of a value; one that the cell does not compute is an argument of it."""
        value = self._values.get(ref)
        if isinstance(value, Array):
            return value
        if isinstance(value, Selected):
            raise StepError(_SELECTED, BY_CONDITION)
        if isinstance(value, Opaque):
            if value.rate == Rate.STATE:
                raise self.reasons.get(ref) or StepError("it depends on what cannot be read")
            if ref not in self._entering:
                kind, mark = ("weight", "w") if value.rate == Rate.WEIGHT else ("input", "p")
                self._entering[ref] = self._leaf(kind, ref, f"{mark}_{ref.number}")
            return self._entering[ref]
        array = self._values[ref] = self._given_to_step(ref)
        return array

    def _given_to_step(self, ref: Ref) -> Array:
        constant = self.tape.constants.get(ref.number)
        if constant is not None:
            return self._constant(ref, constant)
        tape = self.tape
        if ref in tape.carries:
            kind = "static" if ref in self.handed_on else "state"
            return self._leaf(kind, ref, f"s{tape.carries.index(ref)}")
        if ref in tape.inputs:
            return self._leaf("input", ref, f"x{tape.inputs.index(ref)}")
        kind = "static" if ref.number in tape.per_sample else "weight"
        return self._leaf(kind, ref, self._names.get(ref.number, f"w{ref.number}"))

    def _constant(self, ref: Ref, value: Tensor) -> Array:
        if value.numel() and not value.is_complex():
            first = value.flatten()[0]
            if bool((value == first).all()) or value.numel() == 1:
                return number(float(first), *self.tape.place(ref))
        return self._leaf("weight", ref, f"c{ref.number}", value)

    def _leaf(self, kind: str, ref: Ref, name: str, constant: Tensor | None = None) -> Array:
        """An argument of the cell: a vector, a matrix, or slices of them."""
        place = self.tape.place(ref)
        if prod(place.shape) == 0:
            raise StepError("a tensor without elements")
        if self.tape.kind(ref).is_complex:
            raise StepError("complex numbers")
        if kind == "weight" and place.batch is not None:
            kind = "input"

        def argument(at: tuple[int, ...], dims: Dims) -> Tracer:
            label = "_".join([name, *map(str, at)])
            return self._argument_of(Leaf(kind, ref, at, Declared(label, dims), constant))

        whole = Array(0.0, place.shape, place.shape, place.batch)
        if kind == "weight" or len(whole.axes) > 2 or name in self._matrices:
            return _sliced(whole, argument, kind == "weight")
        value = argument((), ((prod(whole.shape),),) if whole.axes else ())
        return replace(whole, value=value, leaves=frozenset({name} if len(whole.axes) == 2 else ()))

    def _argument_of(self, leaf: Leaf) -> Tracer:
        key = leaf.ref, leaf.at
        if self._given is not None:
            return self._given[self.leaves[key].declared.name]
        name, dims = leaf.declared.name, leaf.declared.shape
        taken = {other.declared.name for other in self.leaves.values()}
        while name in taken:  # of another attribute, a_b of one and b of a
            name += "_"
        self.leaves[key] = leaf._replace(declared=Declared(name, dims))
        op = "input" if leaf.kind == "static" else leaf.kind
        return Tracer(node(op, (), (name,), cut_shape(dims, self._cuts), self.name))


def _sliced(
    whole: Array,
    argument: Callable[[tuple[int, ...], Dims], Tracer],
    of_weights: bool,
    at: tuple[int, ...] = (),
) -> Array:
    """Arguments of the cell for a value: of more than two axes, one for each slice."""
    if len(whole.axes) > 2:
        first = whole.axes[0]
        count, inner = whole.base[first], drop_axis(whole, first)
        if count > MOST_SLICES:
            raise StepError(f"an axis of {count} slices")
        rows = [_sliced(inner, argument, of_weights, (*at, k)) for k in range(count)]
        return slicing.of_slices(whole, rows)
    sizes = [whole.base[axis] for axis in whole.axes]
    if len(sizes) == 2 and not of_weights:
        return whole.like(argument(at, (((sizes[0], sizes[1]),),)))
    return whole.like(argument(at, tuple([(size,) for size in sizes])))


_INDEXED = ("index", "index_select", "gather")
_SELECTED = "it reads values that a condition selects"
_ELSEWHERE = "what no next state depends on may be anything: of x, or of outputs alone"
_WITHOUT_MEANING = (
    *("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"),
    *("generator", "copy", "implicit", "out_dtype"),
)


def _rounded(number: float) -> float:
    """A number as torch computes with it in float32."""
    return float(torch.tensor(number, dtype=torch.float32))


def shown(entry: Entry) -> str:
    """An operation as a user knows it."""
    return f"torch's {entry.name.partition('.')[0].strip('_')}"


def _hint_of(error: Exception) -> str:
    for line in str(error).splitlines()[1:]:
        if line.strip().startswith("hint"):
            return line.strip().removeprefix("hint").strip()
    return ""
