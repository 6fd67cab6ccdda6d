"""Reads a tape as the formula of a cell.

What can be read goes into the formula. What depends on inputs or weights alone and cannot be read
is computed by torch before the loop, for all steps at once; what no state depends on and cannot be
read, after it. A state that depends on what cannot be read is an error that names the operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from elman.steps.tape import OWN_GRADIENT, Entry, Ref, Tape, is_random
from elman.torch_internals import memory_of, pytree, schema_of


class Place(NamedTuple):
    """Where a tensor's axis of samples is, and its shape of one sample.

    Attributes:
        shape: with the axis of samples as its rows per sample.
        batch: that axis; None: there is none.
    """

    shape: tuple[int, ...]
    batch: int | None

    @staticmethod
    def of(shape: Sequence[int], batch: int) -> Place:
        """Of a shape of a tape with so many samples."""
        axes = [axis for axis, n in enumerate(shape) if n and n % batch == 0]
        if len(axes) > 1:
            raise StepError("a tensor has two axes of samples")
        sizes = [n // batch if axis in axes else n for axis, n in enumerate(shape)]
        return Place(tuple(sizes), axes[0] if axes else None)

    def apart(self, value: Tensor, lead: int = 0) -> Tensor:
        """A tensor [*lead, ..] as [*lead, B, *shape]; without samples it is of one."""
        if self.batch is None:
            return value.unsqueeze(lead)
        axis = lead + self.batch
        value = value.unflatten(axis, (-1, self.shape[self.batch]))
        return value.movedim(axis, lead) if self.batch else value

    def join(self, value: Tensor, lead: int = 0) -> Tensor:
        """The reverse of :meth:`apart`; without samples, all are alike, and the first is taken."""
        if self.batch is None:
            return value.select(lead, 0)
        axis = lead + self.batch
        value = value.movedim(lead, axis) if self.batch else value
        return value.flatten(axis, axis + 1)


class Leaf(NamedTuple):
    """An argument of the cell.

    Attributes:
        kind: ``input``, ``static``, ``state`` or ``weight``.
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
        tape: of the step.
        inputs: references of inputs of each step.
        carries: references of states.
        name: of the cell.
        names: of captured tensors, by number of reference.
        matrices: names of leaves of two axes that are matrices of each sample.
    """

    def __init__(
        self,
        tape: Tape,
        inputs: Sequence[Ref],
        carries: Sequence[Ref],
        name: str,
        names: Mapping[int, str],
        matrices: frozenset[str] = frozenset(),
    ) -> None:
        self.tape, self._inputs, self._carries, self._name = tape, inputs, carries, name
        self._names, self._matrices = names, matrices
        self._places = [_place_or_none(tensor, tape.batch) for tensor in tape.tensors]
        self._live = _live(tape)
        entries = [tape.entries[at] for at in self._live]
        self._used = {r for entry in entries for r in refs_of((entry.args, entry.kwargs))}
        self._used |= {ref for ref in tape.results if isinstance(ref, Ref)}
        after = zip(carries, tape.results)
        self.handed_on = [before for before, ref in after if ref == before]
        self._dtype = next(
            (m.dtype for r in carries if (m := tape.tensors[r.number]).is_floating_point()), None
        )
        self.leaves: dict[tuple[Ref, tuple[int, ...]], Leaf] = {}  # by reference and slice
        self.opaque: set[int] = set()  # entries
        self.reasons: dict[Ref, StepError] = {}
        self._rates: dict[Ref, Rate] = {}
        self._given: Mapping[str, Tracer] | None = None
        self._cuts: Cuts = {}
        self._values: dict[Ref, Array | _Opaque] = {}

    # ---- one evaluation

    def evaluate(self, cuts: Cuts, given: Mapping[str, Tracer] | None = None) -> None:
        """Give every value of the tape its array.

        Args:
            cuts: how numbers are split.
            given: the tracers of leaves, by name; None: leaves are found, and what cannot be read.
        """
        self._cuts, self._given = cuts, given
        self._values, self._rates = {}, {}
        if given is None:
            self.leaves, self.opaque, self.reasons = {}, set(), {}
        tape = self.tape
        for number in tape.constants:
            self._rates[Ref(number)] = Rate.WEIGHT
        for number in tape.captured:
            sampled = number in tape.per_sample
            self._rates[Ref(number)] = Rate.INPUT if sampled else Rate.WEIGHT
        for ref in self._inputs:
            self._rates[ref] = Rate.INPUT
        for ref in self._carries:
            self._rates[ref] = Rate.INPUT if ref in self.handed_on else Rate.STATE
        for at in self._live:
            self._evaluate_entry(at, tape.entries[at])

    def _evaluate_entry(self, at: int, entry: Entry) -> None:
        refs = refs_of((entry.args, entry.kwargs))
        rate = max([self._rates[ref] for ref in refs], default=Rate.WEIGHT)
        if is_random(entry.op):
            rate = max(rate, Rate.INPUT)
        places = [self._places[ref.number] for ref in refs_of(entry.results)]
        if any(place is not None and place.batch is not None for place in places):
            rate = max(rate, Rate.INPUT)
        opaque = [v for ref in refs if isinstance(v := self._values.get(ref), _Opaque)]
        if any(v.rate == rate for v in opaque):
            self._set_opaque(at, rate, self._reason_of(refs))
            return
        kept = rate == Rate.WEIGHT and any(
            (kind := self.tape.tensors[ref.number].dtype).is_floating_point and kind != self._dtype
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
        for ref, value in zip(refs_in_order(entry.results), given):
            if ref is None:
                continue
            if entry.stops and not isinstance(value, _Opaque):
                value = arr.combine(operations.stop, value)
            self._values[ref] = value
            self._rates[ref] = rate

    def _set_opaque(self, at: int, rate: Rate, reason: StepError | None) -> None:
        """Leave an operation to torch, for all steps' samples at once, or once.

        Raises:
            StepError: it is not of each sample alone.
        """
        entry = self.tape.entries[at]
        results = refs_of(entry.results)
        changing = [r for r in refs_of((entry.args, entry.kwargs)) if self._rates[r] > Rate.WEIGHT]
        if rate == Rate.INPUT and not changing and not is_random(entry.op):
            raise StepError(f"{_shown(entry)} is of the number of samples", at=entry.where)
        for ref in (*results, *changing) if rate > Rate.WEIGHT else ():
            if ref not in self._used:
                continue
            place = self._places[ref.number]
            if place is None or place.batch is None:
                raise reason or StepError(f"{_shown(entry)} joins samples", at=entry.where)
        self.opaque.add(at)
        for ref in results:
            self._values[ref] = _Opaque(rate)
            self._rates[ref] = rate
            if reason is not None:
                self.reasons[ref] = reason

    def _reason_of(self, refs: Sequence[Ref]) -> StepError | None:
        return next((self.reasons[ref] for ref in refs if ref in self.reasons), None)

    def _read(self, entry: Entry) -> Any:
        """The arrays of an operation."""
        if entry.op == OWN_GRADIENT:
            value, inputs, slopes = pytree.tree_map(self._argument, entry.args, is_leaf=_is_ref)
            return operations.own_gradient(value, inputs, slopes)
        row = operations.find(entry.name)
        if row is None:
            raise StepError("elman has no such operation", _ELSEWHERE)
        given = [self.tape.tensors[ref.number] for ref in refs_of((entry.args, entry.kwargs))]
        first = next((ref for ref in refs_of(entry.results)), None)
        if first is None:
            raise StepError("it returns no tensor")
        place = self._place(first)
        facts = Facts(
            place.shape,
            place.batch,
            self.tape.tensors[first.number].dtype,
            tuple([tensor.dtype for tensor in given]),
        )
        args, kwargs = pytree.tree_map(self._argument, (entry.args, entry.kwargs), is_leaf=_is_ref)
        kwargs = {key: value for key, value in kwargs.items() if key not in _WITHOUT_MEANING}
        if facts.dtype == torch.float32 and self._dtype == torch.float64:
            args = pytree.tree_map_only(float, _rounded, args)
        if entry.name.partition(".")[0] in ("index", "index_select", "gather"):
            args = self._with_constants(entry, args)
        return row(facts, *args, **kwargs)

    def _with_constants(self, entry: Entry, args: Any) -> Any:
        """Constant indices as they are."""

        def constant(ref: Any) -> Any:
            if isinstance(ref, Ref) and ref.number in self.tape.constants:
                return self.tape.constants[ref.number]
            place = self.tape.captured.get(ref.number) if isinstance(ref, Ref) else None
            if place is not None and not place.is_floating_point():
                self.tape.places.add(ref.number)
                return place
            return ref

        raw = pytree.tree_map(constant, entry.args, is_leaf=_is_ref)
        flat, spec = pytree.tree_flatten(args, is_leaf=lambda v: isinstance(v, Array))
        kept = pytree.tree_leaves(raw, is_leaf=_is_ref)
        mixed = [new if isinstance(new, Tensor) else old for old, new in zip(flat, kept)]
        return pytree.tree_unflatten(mixed, spec)

    def _argument(self, value: Any) -> Any:
        return self.array(value) if isinstance(value, Ref) else value

    def _place(self, ref: Ref) -> Place:
        place = self._places[ref.number]
        if place is None:
            raise StepError("a tensor has two axes of samples")
        return place

    # ---- values

    def array(self, ref: Ref) -> Array:
        """The array of a value; one that torch computes is an argument of the cell."""
        value = self._values.get(ref)
        if isinstance(value, Array):
            return value
        if isinstance(value, _Opaque) and value.rate == Rate.STATE:
            raise self.reasons.get(ref) or StepError("it depends on what cannot be read")
        constant = self.tape.constants.get(ref.number)
        if constant is not None and value is None:
            array = self._constant(ref, constant)
        elif value is None and ref in self._carries:
            kind = "static" if ref in self.handed_on else "state"
            array = self._leaf(kind, ref, f"s{self._carries.index(ref)}")
        elif value is None and ref in self._inputs:
            array = self._leaf("input", ref, f"x{self._inputs.index(ref)}")
        elif value is None and ref.number in self.tape.captured:
            static = ref.number in self.tape.per_sample
            name = self._names.get(ref.number, f"w{ref.number}")
            array = self._leaf("static" if static else "weight", ref, name)
        else:
            assert isinstance(value, _Opaque), "an entry has values"
            kind = "weight" if value.rate == Rate.WEIGHT else "input"
            array = self._leaf(kind, ref, f"{'w' if kind == 'weight' else 'p'}_{ref.number}")
        self._values[ref] = array if not isinstance(value, _Opaque) else value
        return array

    def _constant(self, ref: Ref, value: Tensor) -> Array:
        place = self._place(ref)
        if value.dtype.is_complex:
            raise StepError("complex numbers")
        if value.numel() and bool((value == value.flatten()[0]).all()):
            return arr.number(float(value.flatten()[0]), place.shape, place.batch)
        if value.numel() == 1:
            return arr.number(float(value), place.shape, place.batch)
        return self._leaf("weight", ref, f"c{ref.number}", value)

    def _leaf(self, kind: str, ref: Ref, name: str, constant: Tensor | None = None) -> Array:
        """An argument of the cell: a vector, a matrix, or slices of them."""
        place = self._place(ref)
        if prod(place.shape) == 0:
            raise StepError("a tensor without elements")
        if self.tape.tensors[ref.number].dtype.is_complex:
            raise StepError("complex numbers")
        if kind == "weight" and place.batch is not None:
            kind = "input"
        shape, axes = place.shape, arr.long_axes(place.shape)
        if kind == "weight" or len(axes) > 2 or name in self._matrices:
            return self._sliced(
                kind, ref, name, Array(0.0, shape, shape, place.batch), (), constant
            )
        count = prod(shape)
        value = self._argument_of(kind, ref, (), name, ((count,),) if count > 1 else (), constant)
        leaves = frozenset({name}) if len(axes) >= 2 else frozenset[str]()
        return Array(value, shape if count > 1 else (1,) * len(shape), shape, place.batch, leaves)

    def _sliced(
        self,
        kind: str,
        ref: Ref,
        name: str,
        whole: Array,
        at: tuple[int, ...],
        constant: Tensor | None,
    ) -> Array:
        axes = arr.long_axes(whole.base)
        if len(axes) > 2:
            if whole.base[axes[0]] > 64:
                raise StepError(f"an axis of {whole.base[axes[0]]} slices")
            inner = arr.drop_axis(whole, axes[0])
            rows = [
                self._sliced(kind, ref, name, inner, (*at, k), constant)
                for k in range(whole.base[axes[0]])
            ]
            return arr.of_slices(whole, rows)
        sizes = [whole.base[axis] for axis in axes]
        dims: Dims = tuple([(n,) for n in sizes])
        if len(sizes) == 2 and kind != "weight":
            dims = (((sizes[0], sizes[1]),),)
        label = "_".join([name, *map(str, at)])
        return whole.like(self._argument_of(kind, ref, at, label, dims, constant))

    def _argument_of(
        self,
        kind: str,
        ref: Ref,
        at: tuple[int, ...],
        name: str,
        dims: Dims,
        constant: Tensor | None,
    ) -> Tracer:
        if self._given is not None:
            return self._given[self.leaves[ref, at].declared.name]
        taken = {leaf.declared.name for leaf in self.leaves.values()}
        while name in taken:  # of another attribute, a_b of one and b of a
            name += "_"
        self.leaves[ref, at] = Leaf(kind, ref, at, Declared(name, dims), constant)
        op = "input" if kind == "static" else kind
        return Tracer(node(op, (), (name,), cut_shape(dims, self._cuts), self._name))

    # ---- results

    def is_opaque(self, ref: Ref) -> Rate | None:
        """The rate of a value that torch computes; None of one that the cell computes."""
        value = self._values.get(ref)
        return value.rate if isinstance(value, _Opaque) else None

    def rate(self, ref: Ref) -> Rate:
        """How often a value changes."""
        return self._rates[ref]


_WITHOUT_MEANING = ("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking")
_ELSEWHERE = "what no next state depends on may be anything: of x, or of outputs alone"
_WITHOUT_MEANING += ("generator", "copy", "implicit", "out_dtype")


def _rounded(number: float) -> float:
    """A number as torch computes with it in float32."""
    return float(torch.tensor(number, dtype=torch.float32))


def _is_ref(value: Any) -> bool:
    return isinstance(value, Ref)


def _place_or_none(tensor: Tensor, batch: int) -> Place | None:
    try:
        return Place.of(tensor.shape, batch)
    except StepError:
        return None


def refs_of(tree: Any) -> list[Ref]:
    """All references in arguments or results."""
    return [leaf for leaf in pytree.tree_leaves(tree, is_leaf=_is_ref) if isinstance(leaf, Ref)]


def refs_in_order(results: Any) -> list[Ref | None]:
    """The references that an operation returns; None in place of what is no tensor."""
    leaves = pytree.tree_leaves(results, is_leaf=lambda v: isinstance(v, Ref) or v is None)
    return [leaf if isinstance(leaf, Ref) else None for leaf in leaves]


def _live(tape: Tape) -> list[int]:
    """Numbers of the entries that a result depends on, and of those that write to what the step
    closes over."""
    needed = {ref for ref in tape.results if isinstance(ref, Ref)}
    kept: list[int] = []
    for at in reversed(range(len(tape.entries))):
        entry = tape.entries[at]
        if needed.intersection(refs_of(entry.results)) or writes_outside(tape, entry):
            kept.append(at)
            needed.update(refs_of((entry.args, entry.kwargs)))
    return kept[::-1]


def writes_outside(tape: Tape, entry: Entry) -> bool:
    """Whether an operation writes to a tensor that the step closes over."""
    if not entry.writes:
        return False
    schema = schema_of(entry.op).arguments
    targets = [
        entry.args[at]
        for at, argument in enumerate(schema)
        if argument.alias_info is not None and argument.alias_info.is_write and at < len(entry.args)
    ]
    memory = {memory_of(tape.tensors[n]) for n in tape.captured}
    return any(memory_of(tape.tensors[ref.number]) in memory for ref in refs_of(targets))


def _shown(entry: Entry) -> str:
    """An operation as a user knows it."""
    name = entry.name.partition(".")[0]
    return f"torch's {name.strip('_')}"


def _hint_of(error: Exception) -> str:
    for line in str(error).splitlines()[1:]:
        if line.strip().startswith("hint"):
            return line.strip().removeprefix("hint").strip()
    return ""


# ---- the cell


def read(
    tape: Tape,
    inputs: Sequence[Ref],
    carries: Sequence[Ref],
    name: str,
    names: Mapping[int, str],
) -> Reading:
    """Read a tape.

    Args:
        tape: of a step that returns its next states, as many leaves as ``carries``, then others.
        inputs, carries: references of the leaves that the step was given.
        name: of the cell.
        names: of captured tensors.

    Raises:
        StepError: a next state depends on what cannot be read.
    """
    matrices: frozenset[str] = frozenset()
    while True:
        reader = Reader(tape, inputs, carries, name, names, matrices)
        try:
            return _Maker(reader, carries).make()
        except MatrixError as error:
            if error.leaves <= matrices:
                raise StepError("a vector is read as a matrix") from error
            matrices |= error.leaves


class _Maker:
    """Makes a cell of what a reader finds."""

    def __init__(self, reader: Reader, carries: Sequence[Ref]) -> None:
        self.reader, self.tape, self.carry_refs = reader, reader.tape, carries
        self.outputs: list[tuple[Tracer, Dims]] = []
        self._exported: dict[Any, Any] = {}

    def make(self) -> Reading:
        cuts: dict[int, tuple[int, ...]] = {}
        while True:
            try:
                with tracing(Tracing(cuts, Share())), counting():
                    self.reader.evaluate(cuts)
                    parts = self._collect()
                break
            except UncutError as uncut:
                cuts.update(uncut.cuts)
        carries, ys, exported, states, next_states = parts
        reader, leaves = self.reader, [*self.reader.leaves.values()]
        entries = [at for at in reader._live if at in reader.opaque or self._writes(at)]
        rates = {
            at: max(
                [reader.rate(r) for r in refs_of(self.tape.entries[at].results)],
                default=Rate.WEIGHT,
            )
            for at in entries
        }
        of_kind = {
            kind: [leaf for leaf in leaves if leaf.kind == kind]
            for kind in ("input", "static", "state", "weight")
        }
        of_kind["state"] = [leaf for group in states for leaf in group]
        if not of_kind["input"]:
            of_kind["input"] = [Leaf("input", None, (), Declared("no_input", ()))]
            leaves.append(of_kind["input"][0])
        outputs = self.outputs
        if len(outputs) == 1 and next_states and outputs[0][0].node is next_states[0].node:
            outputs = []
        ordered = [
            leaf for kind in ("input", "static", "state", "weight") for leaf in of_kind[kind]
        ]
        cell = self._cell(of_kind, ordered, outputs, bool(next_states))
        before = _needed(self.tape, reader, leaves, ys, rates, entries)
        return Reading(
            self.tape,
            cell,
            ordered,
            before,
            [at for at in entries if rates[at] == Rate.STATE],
            carries,
            ys,
            exported,
            states,
        )

    def _writes(self, at: int) -> bool:
        entry = self.tape.entries[at]
        if not writes_outside(self.tape, entry):
            return False
        rate = max(
            [self.reader.rate(r) for r in refs_of((entry.args, entry.kwargs))], default=Rate.WEIGHT
        )
        if rate > Rate.WEIGHT:
            raise StepError(
                f"{_shown(entry)} writes to a tensor that the step closes over",
                "return it as a state",
                at=entry.where,
            )
        return True

    def _cell(
        self,
        of_kind: Mapping[str, list[Leaf]],
        ordered: Sequence[Leaf],
        outputs: Sequence[tuple[Tracer, Dims]],
        has_states: bool,
    ) -> Cell:
        maker, names = self, [leaf.declared.name for leaf in ordered]

        def step(*values: Tracer) -> Any:
            reader = maker.reader
            reader.evaluate({}, dict(zip(names, values, strict=True)))
            again = _Maker(reader, maker.carry_refs)
            next_states = again._collect()[-1]
            first = [tracer for tracer, _ in again.outputs] if outputs else []
            return (*first, *next_states)

        step.__name__ = step.__qualname__ = self.reader._name
        declared = {
            kind: tuple([leaf.declared for leaf in group]) for kind, group in of_kind.items()
        }
        fixed = frozenset(
            leaf.declared.name for leaf in of_kind["weight"] if leaf.constant is not None
        )
        results = tuple([Declared(f"y{k}", dims) for k, (_, dims) in enumerate(outputs)])
        cell = Cell(
            self.reader._name,
            declared["input"],
            declared["static"],
            declared["state"],
            declared["weight"],
            fixed,
            results,
            {},
            "",
            step,
            {},
        )
        with quiet_warnings():
            cell = cell.recurrent
            _ = cell.graph
        return cell

    def _collect(self) -> tuple[Any, ...]:
        """Results of the step as values of the cell."""
        reader, tape = self.reader, self.tape
        count = len(self.carry_refs)
        carries: list[Result] = []
        states: list[list[Leaf]] = []
        next_states: list[Tracer] = []
        for ref, before in zip(tape.results[:count], self.carry_refs):
            if before in reader.handed_on:
                carries.append(self._result("static", ref))
                states.append([])
                continue
            rate = reader.is_opaque(ref)
            if rate == Rate.STATE:
                raise reader.reasons.get(ref) or StepError("it depends on what cannot be read")
            start = reader.array(before)
            after = reader.array(ref)
            place, was = reader._place(ref), reader._place(before)
            if place != was:
                raise StepError(
                    f"a state of shape {[*was.shape]} becomes one of {[*place.shape]}",
                    "a step returns states of the shapes that it takes",
                )
            parts, tracers, leaves = self._next(after, start, before, ())
            places = [len(next_states) + k for k in range(len(tracers))]
            carries.append(self._result("cell", ref, _nested(parts, places), start.base))
            states.append(leaves)
            next_states += tracers
        ys = [self._y(ref) for ref in tape.results[count:]]
        exported: dict[Ref, Result] = {}
        for at in reader._live:
            if at not in reader.opaque:
                continue
            entry = tape.entries[at]
            rates = [reader.rate(r) for r in refs_of(entry.results)]
            if max(rates, default=Rate.WEIGHT) < Rate.STATE:
                continue
            for ref in refs_of((entry.args, entry.kwargs)):
                if reader.is_opaque(ref) is None and reader.rate(ref) == Rate.STATE:
                    exported.setdefault(ref, self._y(ref))
        return carries, ys, exported, states, next_states

    def _result(self, kind: str, ref: Any, parts: Any = None, base: tuple[int, ...] = ()) -> Result:
        if not isinstance(ref, Ref):
            return Result("plain", ref, None, Place((), None), (), torch.float32)
        dtype = self.tape.tensors[ref.number].dtype
        return Result(kind, ref, parts, self.reader._place(ref), base, dtype)

    def _y(self, ref: Any) -> Result:
        if not isinstance(ref, Ref):
            return self._result("plain", ref)
        reader = self.reader
        known = ref.number in self.tape.constants or reader.rate(ref) < Rate.STATE
        if reader.is_opaque(ref) is not None:
            return self._result("outside", ref)
        if known and ref not in reader._values:
            return self._result("outside", ref)
        array = reader.array(ref)
        parts = self._output(array)
        return self._result("cell", ref, parts, array.base)

    def _output(self, array: Array) -> Any:
        """Where the values of an array stand among the outputs of the cell."""
        if array.slices:
            rows = [arr.to_flat(part) if not part.matrix else part for part in array.value]
            inner = arr.broadcast(*[row.base for row in rows])
            return [self._output(_at_base(row, inner)) for row in rows]
        key = array.number if array.number is not None else lift(array.value)
        if key not in self._exported:
            tracer = _tracer(array)
            self._exported[key] = len(self.outputs)
            self.outputs.append((tracer, _dims(array)))
        return self._exported[key]

    def _next(
        self, after: Array, start: Array, ref: Ref, at: tuple[int, ...]
    ) -> tuple[Any, list[Tracer], list[Leaf]]:
        """A next state in the form of the state."""
        if start.slices:
            first = arr.long_axes(start.base)[0]
            rows = arr.unbind(after, first)
            parts: list[Any] = []
            tracers: list[Tracer] = []
            leaves: list[Leaf] = []
            for k, (row, like) in enumerate(zip(rows, arr.unbind(start, first), strict=True)):
                part, some, their = self._next(row, like, ref, (*at, k))
                parts.append(part)
                tracers += some
                leaves += their
            return parts, tracers, leaves
        return None, [_like(after, start)], [self.reader.leaves[ref, at]]


def _nested(parts: Any, places: list[int]) -> Any:
    if isinstance(parts, list):
        return [_nested(part, places) for part in parts]
    return places.pop(0)


def _at_base(array: Array, base: tuple[int, ...]) -> Array:
    if array.base == base or array.matrix:
        return array
    return arr.held(array, base)


def _tracer(array: Array) -> Tracer:
    """A value that a cell returns."""
    if array.uniform:
        count = prod(array.base)
        value = Tracer(lift(array.value))
        if value.node.op == "const" and count == 1:
            return Tracer(node("lin", (value.node,), ((1.0,), 0.0), (), value.node.where))
        return value
    return Tracer(lift(array.value))


def _dims(array: Array) -> Dims:
    """The declared shape of an output."""
    if array.uniform:
        return ()
    sizes = [array.base[axis] for axis in arr.long_axes(array.base)]
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
        base = start.base
        if after.slices:
            raise StepError("a state becomes slices")
        if after.uniform or after.base != base:
            ones = arr.whole_matrix(after, base)
            return Tracer(lift(ones))
        return Tracer(lift(arr.to_matrix(after).value))
    if after.matrix and start.leaves:
        raise MatrixError(start.leaves)
    flat = arr.to_flat(after)
    return arr.held(flat, start.base).value


def _needed(
    tape: Tape,
    reader: Reader,
    leaves: Sequence[Leaf],
    ys: Sequence[Result],
    rates: Mapping[int, Rate],
    entries: Sequence[int],
) -> tuple[list[int], list[int]]:
    """Entries that torch runs before the loop: once, and for each step."""
    wanted = {leaf.ref for leaf in leaves if leaf.ref is not None}
    wanted |= {y.value for y in ys if y.kind == "outside"}
    for at in entries:
        if rates[at] == Rate.STATE:
            wanted.update(refs_of((tape.entries[at].args, tape.entries[at].kwargs)))
    once: list[int] = []
    each: list[int] = []
    for at in reversed(reader._live):
        entry = tape.entries[at]
        results = refs_of(entry.results)
        rate = max([reader.rate(ref) for ref in results], default=Rate.WEIGHT)
        if rate == Rate.STATE:
            continue
        if wanted.intersection(results) or writes_outside(tape, entry):
            (once if rate == Rate.WEIGHT else each).append(at)
            wanted.update(refs_of((entry.args, entry.kwargs)))
    return once[::-1], each[::-1]
