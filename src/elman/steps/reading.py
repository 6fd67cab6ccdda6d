"""Reads a tape as the formula of a cell.

What can be read goes into the formula. What depends on inputs or weights alone and cannot be read
is computed by torch before the loop, for all steps at once; what no state depends on and cannot be
read, after it. A state that depends on what cannot be read is an error that names the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elman.errors import ShapeError, StepError, TraceError, quiet_warnings
from elman.frontend.cell import Cell
from elman.frontend.dims import Cuts, UncutError, cut_shape
from elman.frontend.draws import counting
from elman.frontend.heads import Share, Tracing, tracing
from elman.frontend.lines import written_at
from elman.frontend.signature import Declared
from elman.frontend.trace import Tracer, lift
from elman.ir.graph import Rate, node
from elman.ir.types import Shape as Dims
from elman.steps import arrays as arr
from elman.steps import operations
from elman.steps.arrays import Array, MatrixError
from elman.steps.operations import Facts
from elman.steps.tape import OWN_GRADIENT, Entry, Place, Ref, Tape, is_random, is_ref, refs_of
from elman.torch_internals import memory_of, pytree

KINDS = ("input", "static", "state", "weight")  # of arguments, in their order


class Leaf(NamedTuple):
    """An argument of the cell.

    Attributes:
        kind: one of ``KINDS``.
        ref: whose value it is; None: of a constant.
        at: which slice of it along its leading axes longer than one.
        declared: its name and shape.
        constant: the value, of a constant.
    """

    kind: str
    ref: Ref | None
    at: tuple[int, ...]
    declared: Declared
    constant: Tensor | None = None


class Result(NamedTuple):
    """A leaf of what the step returns.

    Attributes:
        kind: ``plain`` (no tensor), ``outside`` (of torch, before or after the loop), ``static``
            (handed on as it is), ``cell``.
        value: what it is; a reference.
        parts: of a result of the cell: which of its values, nested by slices.
        place: of the result.
        base: the shape of one sample that the cell hands out.
        dtype: of the result.
    """

    kind: str
    value: Any
    parts: Any
    place: Place
    base: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Reading:
    """A step as a formula.

    Attributes:
        tape: that was read.
        cell: the formula.
        leaves: its arguments.
        before: numbers of entries that torch computes before the loop: of weights alone; of inputs.
        after: numbers of entries that torch computes after it.
        carries: next states, ys: other results, in the order in which the step returns them.
        exported: references of the tape that the entries after the loop read, and how they leave.
        states: for each leaf of the carry, the names of the cell's states that hold it.
    """

    tape: Tape
    cell: Cell
    leaves: list[Leaf]
    before: tuple[list[int], list[int]]
    after: list[int]
    carries: list[Result]
    ys: list[Result]
    exported: dict[Ref, Result]
    states: list[list[Leaf]]


class _Opaque(NamedTuple):
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
        self.live = _needed(tape, range(len(tape.entries)), results)
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
        self._values: dict[Ref, Array | _Opaque] = {}
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
        opaque = [v for ref in refs if isinstance(v := self._values.get(ref), _Opaque)]
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
            said = StepError(f"{_shown(entry)}: {reason}", _hint_of(error), at=entry.where)
            self._set_opaque(at, rate, said)
            return
        given = values if isinstance(values, (tuple, list)) else [values]
        for ref, value in zip(pytree.tree_leaves(entry.results, is_leaf=is_ref), given):
            if isinstance(ref, Ref):
                self._values[ref] = arr.combine(operations.stop, value) if entry.stops else value
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
            raise StepError(f"{_shown(entry)} is of the number of samples", at=entry.where)
        for ref in (*results, *changing) if rate > Rate.WEIGHT else ():
            if ref in self._used and not self._has_samples(ref):
                raise reason or StepError(f"{_shown(entry)} joins samples", at=entry.where)
        self.opaque.add(at)
        for ref in results:
            self._values[ref] = _Opaque(rate)
            self._rates[ref] = rate
            if reason is not None:
                self.reasons[ref] = reason

    def _read(self, entry: Entry) -> Any:
        """The arrays of an operation."""
        if entry.op == OWN_GRADIENT:
            value, inputs, slopes = pytree.tree_map(self._argument, entry.args, is_leaf=is_ref)
            return operations.own_gradient(value, inputs, slopes)
        row = operations.find(entry.name)
        if row is None:
            raise StepError("elman has no such operation", _ELSEWHERE)
        results = refs_of(entry.results)
        if not results:
            raise StepError("it returns no tensor")
        kinds = [*map(self.tape.kind, (results[0], *entry.given))]
        facts = Facts(*self.tape.place(results[0]), kinds[0], tuple(kinds[1:]))
        argument = self._index if entry.name.partition(".")[0] in _INDEXED else self._argument
        args, kwargs = pytree.tree_map(argument, (entry.args, entry.kwargs), is_leaf=is_ref)
        kwargs = {key: value for key, value in kwargs.items() if key not in _WITHOUT_MEANING}
        if facts.dtype == torch.float32 and self._dtype == torch.float64:
            args = pytree.tree_map_only(float, _rounded, args)
        return row(facts, *args, **kwargs)

    def _argument(self, value: Any) -> Any:
        return self.array(value) if isinstance(value, Ref) else value

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

    def value(self, ref: Ref) -> Array | _Opaque | None:
        """What was found of a value; None of one that the step is given and nothing has read."""
        return self._values.get(ref)

    def rate_of(self, refs: Sequence[Ref]) -> Rate:
        """How often some values change."""
        return max([self._rates[ref] for ref in refs], default=Rate.WEIGHT)

    def array(self, ref: Ref) -> Array:
        """The array of a value; one that the cell does not compute is an argument of it."""
        value = self._values.get(ref)
        if isinstance(value, Array):
            return value
        if isinstance(value, _Opaque):
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
                return arr.number(float(first), *self.tape.place(ref))
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
        count, inner = whole.base[first], arr.drop_axis(whole, first)
        if count > arr.MOST_SLICES:
            raise StepError(f"an axis of {count} slices")
        rows = [_sliced(inner, argument, of_weights, (*at, k)) for k in range(count)]
        return arr.of_slices(whole, rows)
    sizes = [whole.base[axis] for axis in whole.axes]
    if len(sizes) == 2 and not of_weights:
        return whole.like(argument(at, (((sizes[0], sizes[1]),),)))
    return whole.like(argument(at, tuple([(size,) for size in sizes])))


_INDEXED = ("index", "index_select", "gather")
_ELSEWHERE = "what no next state depends on may be anything: of x, or of outputs alone"
_WITHOUT_MEANING = (
    *("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"),
    *("generator", "copy", "implicit", "out_dtype"),
)


def _rounded(number: float) -> float:
    """A number as torch computes with it in float32."""
    return float(torch.tensor(number, dtype=torch.float32))


def _needed(tape: Tape, entries: Sequence[int], wanted: Iterable[Ref]) -> list[int]:
    """Those entries, by number, that some values depend on, and those that write to what the step
    closes over."""
    refs, kept = {*wanted}, list[int]()
    for at in reversed(entries):
        entry = tape.entries[at]
        if refs.intersection(refs_of(entry.results)) or _writes_outside(tape, entry):
            kept.append(at)
            refs.update(entry.given)
    return kept[::-1]


def _writes_outside(tape: Tape, entry: Entry) -> bool:
    """Whether an operation writes to a tensor that the step closes over."""
    written = {memory_of(tape.tensors[ref.number]) for ref in entry.written}
    captured = tape.captured if written else ()
    return any(memory_of(tape.tensors[number]) in written for number in captured)


def _shown(entry: Entry) -> str:
    """An operation as a user knows it."""
    return f"torch's {entry.name.partition('.')[0].strip('_')}"


def _hint_of(error: Exception) -> str:
    for line in str(error).splitlines()[1:]:
        if line.strip().startswith("hint"):
            return line.strip().removeprefix("hint").strip()
    return ""


# ---- the cell


def read(tape: Tape, name: str, names: Mapping[int, str]) -> Reading:
    """Read a tape.

    Args:
        tape: of a step that returns its next states, as many leaves as it is given, then others.
        name: of the cell.
        names: of captured tensors, by number of reference.

    Raises:
        StepError: a next state depends on what cannot be read.
    """
    matrices: frozenset[str] = frozenset()
    cuts: dict[int, tuple[int, ...]] = {}
    while True:
        reader = Reader(tape, name, names, matrices)
        try:
            with tracing(Tracing(cuts, Share())), counting():
                reader.evaluate(cuts)
                results = _Results(reader)
            return _reading(reader, results)
        except UncutError as uncut:
            cuts.update(uncut.cuts)
        except MatrixError as error:
            if error.leaves <= matrices:
                raise StepError("a vector is read as a matrix") from error
            matrices, cuts = matrices | error.leaves, {}


def _reading(reader: Reader, results: _Results) -> Reading:
    tape, rate = reader.tape, {at: _rate(reader, at) for at in reader.live}
    outside = [at for at in reader.live if at in reader.opaque or _writes_weight(reader, at)]
    after = [at for at in outside if rate[at] == Rate.STATE]
    leaves = {
        kind: [leaf for leaf in reader.leaves.values() if leaf.kind == kind] for kind in KINDS
    }
    leaves["state"] = [leaf for group in results.states for leaf in group]
    leaves["input"] = leaves["input"] or [Leaf("input", None, (), Declared("no_input", ()))]
    ordered = [leaf for kind in KINDS for leaf in leaves[kind]]
    wanted = [leaf.ref for leaf in ordered if leaf.ref is not None]
    wanted += [y.value for y in results.ys if y.kind == "outside"]
    wanted += [ref for at in after for ref in tape.entries[at].given]
    before = _needed(tape, [at for at in reader.live if rate[at] < Rate.STATE], wanted)
    once = [at for at in before if rate[at] == Rate.WEIGHT]
    each = [at for at in before if rate[at] > Rate.WEIGHT]
    given = results.carries, results.ys, results.exported, results.states
    return Reading(tape, _cell(reader, results, leaves), ordered, (once, each), after, *given)


def _rate(reader: Reader, at: int) -> Rate:
    return reader.rate_of(refs_of(reader.tape.entries[at].results))


def _writes_weight(reader: Reader, at: int) -> bool:
    """Whether an operation writes to what the step closes over. Raises StepError: other values than
    such do."""
    entry = reader.tape.entries[at]
    if not _writes_outside(reader.tape, entry):
        return False
    if reader.rate_of(entry.given) > Rate.WEIGHT:
        raise StepError(
            f"{_shown(entry)} writes to a tensor that the step closes over",
            "return it as a state",
            at=entry.where,
        )
    return True


def _cell(reader: Reader, results: _Results, leaves: Mapping[str, list[Leaf]]) -> Cell:
    names = [leaf.declared.name for kind in KINDS for leaf in leaves[kind]]
    outputs, next_states = results.outputs, results.next_states
    if len(outputs) == 1 and next_states and outputs[0][0].node is next_states[0].node:
        outputs = []  # a layer returns its first state

    def step(*values: Tracer) -> Any:
        reader.evaluate({}, dict(zip(names, values, strict=True)))
        again = _Results(reader)
        first = [tracer for tracer, _ in again.outputs] if outputs else []
        return (*first, *again.next_states)

    step.__name__ = step.__qualname__ = reader.name
    constants = [leaf.declared.name for leaf in leaves["weight"] if leaf.constant is not None]
    with quiet_warnings():
        cell = Cell(
            reader.name,
            *[tuple([leaf.declared for leaf in leaves[kind]]) for kind in KINDS],
            tuple([Declared(f"y{k}", dims) for k, (_, dims) in enumerate(outputs)]),
            step,
            constants=frozenset(constants),
        ).recurrent
        _ = cell.graph
    return cell


class _Results:
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
            if at in reader.opaque and _rate(reader, at) == Rate.STATE:
                for ref in tape.entries[at].given:
                    is_opaque = isinstance(reader.value(ref), _Opaque)
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
        if not isinstance(ref, Ref):
            return Result("plain", ref, None, Place((), None), (), torch.float32)
        tape = self._reader.tape
        return Result(kind, ref, parts, tape.place(ref), base, tape.kind(ref))

    def _y(self, ref: Any) -> Result:
        if not isinstance(ref, Ref):
            return self._result("plain", ref)
        value = self._reader.value(ref)
        not_read = value is None and self._reader.rate_of([ref]) < Rate.STATE
        if not_read or isinstance(value, _Opaque):
            return self._result("outside", ref)
        array = self._reader.array(ref)
        return self._result("cell", ref, self._output(array), array.base)

    def _output(self, array: Array) -> Any:
        """Where the values of an array stand among the outputs of the cell, nested by slices."""
        if array.slices:
            rows = [part if part.matrix else arr.to_flat(part) for part in array.value]
            inner = arr.broadcast(*[row.base for row in rows])
            return [self._output(row if row.matrix else arr.held(row, inner)) for row in rows]
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
            rows = zip(arr.unbind(after, first), arr.unbind(start, first), strict=True)
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
            return arr.whole_matrix(after, start.base)
        return Tracer(lift(arr.to_matrix(after).value))
    if after.matrix and start.leaves:
        raise MatrixError(start.leaves)
    return arr.held(arr.to_flat(after), start.base).value
