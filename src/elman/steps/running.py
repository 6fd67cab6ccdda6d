"""Runs a step that was read: what torch computes before the loop, the loop, what comes after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from elman.nn.layout.layout import unwrap_single
from elman.steps.arrays.array import long_axes
from elman.steps.layer import StepLayer
from elman.steps.reading.reading import Leaf, Reading, Result
from elman.steps.recording.tape import OWN_GRADIENT, Place, Ref, is_ref
from elman.torch_internals import pytree


class Given(NamedTuple):
    """What a loop is given.

    Attributes:
        xs: leaves [T, ..]. carry: leaves.
        captured: tensors that the step closes over, as they are now.
        steps, batch: T and B.
        options: of the layer's call.
    """

    xs: Sequence[Tensor]
    carry: Sequence[Tensor]
    captured: Sequence[Tensor]
    steps: int
    batch: int
    options: Mapping[str, Any]


class Program:
    """A step that was read, with the layer that runs it.

    Args:
        reading: of the step.
        engine: a name, or ``auto``.
        dtype: of the formula. results: of its results, where that is another one.
    """

    def __init__(
        self,
        reading: Reading,
        engine: str,
        dtype: torch.dtype,
        results: torch.dtype | None = None,
    ) -> None:
        self.reading, self.dtype, self._results = reading, dtype, results or dtype
        whole = all(result.kind == "cell" for result in (*reading.carries, *reading.ys))
        whole = whole and not (reading.before[1] or reading.after)
        self.layer = StepLayer(reading.cell, engine, whole)
        tape = reading.tape
        refs = {leaf.ref for leaf in reading.leaves if leaf.ref is not None}
        self._places = {ref: tape.place(ref) for ref in refs.union(tape.inputs, tape.carries)}
        kinds = [*map(tape.kind, tape.carries)]
        floats = [kind for kind in (*kinds, *map(tape.kind, tape.inputs)) if kind.is_floating_point]
        self._main = floats[0] if floats else dtype
        self.counts = any(not (kind.is_floating_point or kind is torch.bool) for kind in kinds)
        self._captured = [*map(Ref, tape.captured)]
        self._handed_on = [
            (ref, at) for at, ref in enumerate(tape.carries) if reading.carries[at].kind == "static"
        ]
        self._constants = {Ref(n): c for n, c in tape.constants.items()}
        groups = {
            kind: [leaf for leaf in reading.leaves if leaf.kind == kind]
            for kind in ("input", "static", "weight")
        }
        self._inputs, self._static = groups["input"], groups["static"]
        self._weights = [*enumerate(groups["weight"])]
        self._fixed = {
            at: self._shaped(leaf, leaf.constant)
            for at, leaf in self._weights
            if leaf.constant is not None
        }
        self._last: tuple[Any, StepLayer] = (None, self.layer)  # with weights that are as captured
        self._states = [(at, leaf) for at, group in enumerate(reading.states) for leaf in group]
        self._direct = [
            tape.inputs.index(leaf.ref) if leaf.ref and leaf.ref in tape.inputs else None
            for leaf in self._inputs
        ]
        self._simple = [at for at in self._direct if at is not None] if self._is_simple() else []

    def run(self, given: Given) -> tuple[list[Any], list[Any]]:
        """Run the loop.

        Returns:
            Leaves of the last carry, and of the outputs [T, ..].
        """
        if self._simple and not given.options:
            return self._run_simple(given)
        layer_call, once, each = self.enter(given)
        layer, x, state, call = layer_call
        out, last = layer.run(x, state, call)
        outs, lasts = (v if isinstance(v, tuple) else (v,) for v in (out, last))
        ends = [
            self._leave(result, lasts, 0) if result.kind == "cell" else given.carry[at]
            for at, result in enumerate(self.reading.carries)
        ]
        if self.reading.after:
            self._after(outs, each, given)
        valid = _valid(given)
        ys = [
            self._leave(result, outs, 1)
            if result.kind == "cell"
            else _counted(self._y(result, once, each, given), result, valid)
            for result in self.reading.ys
        ]
        return ends, ys

    def enter(self, given: Given) -> tuple[Any, dict[Ref, Tensor], dict[Ref, Tensor]]:
        """What comes before the loop.

        Returns:
            The layer with its weights; x, the state and the options of its call; what torch
            computed once, and for each step.
        """
        reading, steps, batch = self.reading, given.steps, given.batch
        once: dict[Ref, Tensor] = dict(zip(self._captured, given.captured))
        once.update({ref: given.carry[at] for ref, at in self._handed_on})
        each: dict[Ref, Tensor] = {}
        if reading.before[0]:
            once.update(self._constants)
            self._replay(reading.before[0], once, 0)
        if reading.before[1] or reading.after:
            each = {**once, **self._constants, **self._rows(once, given)}
            self._replay(reading.before[1], each, steps * batch)
        x = [self._input(at, each, given) for at in range(len(self._inputs))]
        layer = self._with_weights(given.captured, once)
        call: dict[str, Any] = dict(given.options)
        if self._static:
            values = [self._of_sample(leaf, once[leaf.ref], 0) for leaf in self._static if leaf.ref]
            call["static"] = tuple([value.expand(batch, *value.shape[1:]) for value in values])
        starts = [self._start(leaf, given.carry[at], batch) for at, leaf in self._states]
        state = unwrap_single(starts) if starts else None
        return (layer, unwrap_single(x), state, call), once, each

    def _with_weights(self, captured: Sequence[Tensor], once: Mapping[Ref, Tensor]) -> StepLayer:
        """The layer with the weights of a call."""
        before, layer = self._last
        if captured is before:
            return layer
        weights = [self._weight(at, leaf, once) for at, leaf in self._weights]
        layer = self.layer.with_weights(weights)
        theirs = {*map(id, captured), *map(id, self._fixed.values())}
        if all(id(weight) in theirs for weight in weights):
            self._last = captured, layer  # in one tuple, as threads read it
        return layer

    def _is_simple(self) -> bool:
        """Whether the layer takes and returns all values as torch has them, but for the first axis
        of its states."""
        reading = self.reading
        leaves = [*self._inputs, *[leaf for group in reading.states for leaf in group]]
        results = [*reading.carries, *reading.ys]
        return (
            bool(self._states)
            and self._results is self.dtype
            and not (any(reading.before) or reading.after or self._static)
            and None not in self._direct
            and all(self._is_usual(leaf) for leaf in leaves)
            and all(reading.tape.kind(leaf.ref) is self.dtype for leaf in leaves if leaf.ref)
            and all(self._leaves_as_is(result) for result in results)
        )

    def _run_simple(self, given: Given) -> tuple[list[Any], list[Any]]:
        before, layer = self._last
        if given.captured is not before:
            layer = self._with_weights(given.captured, dict(zip(self._captured, given.captured)))
        x = [given.xs[at] for at in self._simple]
        starts = [given.carry[at].unsqueeze(0) for at, _ in self._states]
        out, last = layer.run(unwrap_single(x), unwrap_single(starts), {})
        lasts = last if isinstance(last, tuple) else (last,)
        outs = out if isinstance(out, tuple) else (out,)
        ends = [lasts[result.parts].squeeze(0) for result in self.reading.carries]
        return ends, [outs[result.parts] for result in self.reading.ys]

    # ---- what torch computes

    def _rows(self, once: Mapping[Ref, Tensor], given: Given) -> dict[Ref, Tensor]:
        """Inputs, and static ones, with all steps' samples along the axis of samples."""
        pairs = zip(self.reading.tape.inputs, given.xs, strict=True)
        rows = {ref: _merged(value, self._places[ref], given.batch) for ref, value in pairs}
        for leaf in self._static:
            if leaf.ref is not None:
                rows[leaf.ref] = self._of_all_steps(leaf.ref, once[leaf.ref], given)
        return rows

    def _of_all_steps(self, ref: Ref, value: Tensor, given: Given) -> Tensor:
        """A value that is the same in each step, for all of them."""
        wide = value.expand(given.steps, *value.shape)
        return _merged(wide, self._places[ref], given.batch)

    def _replay(self, entries: Sequence[int], values: dict[Ref, Tensor], rows: int) -> None:
        """Run operations of the tape on other tensors.

        Args:
            rows: in place of the batch of the tape.
        """
        tape = self.reading.tape

        def argument(value: Any) -> Any:
            return values[value] if isinstance(value, Ref) else tape.sized(value, rows.__mul__)

        for at in entries:
            entry = tape.entries[at]
            args, kwargs = pytree.tree_map(argument, (entry.args, entry.kwargs), is_leaf=is_ref)
            with torch.no_grad() if entry.stops else nullcontext():
                if entry.op == OWN_GRADIENT:
                    results = _Own.apply(args[0], len(args[1]), *args[1], *args[2])
                elif entry.name == "copy.default":  # which has no derivative
                    results = args[1].to(args[0].dtype).expand_as(args[0])
                else:
                    results = entry.op(*args, **kwargs)
            refs = pytree.tree_leaves(entry.results, is_leaf=is_ref)
            given = pytree.tree_leaves(results)
            values.update({r: v for r, v in zip(refs, given, strict=True) if isinstance(r, Ref)})

    def _after(self, outs: Sequence[Tensor], each: dict[Ref, Tensor], given: Given) -> None:
        for ref, result in self.reading.exported.items():
            each[ref] = _merged(self._leave(result, outs, 1), result.place, given.batch)
        for ref, value in zip(self.reading.tape.carries, given.carry, strict=True):
            if ref not in each:
                each[ref] = self._of_all_steps(ref, value, given)
        self._replay(self.reading.after, each, given.steps * given.batch)

    # ---- arguments of the layer

    def _is_usual(self, leaf: Leaf) -> bool:
        """Whether a leaf is [B] or [B, n], as torch has it."""
        if leaf.ref is None:
            return False
        place = self._places[leaf.ref]
        dims = len(leaf.declared.shape) + 1
        return place.batch == 0 and place.shape[0] == 1 and len(place.shape) == dims <= 2

    def _of_sample(self, leaf: Leaf, value: Tensor, lead: int) -> Tensor:
        """A value as a leaf of the formula: [*lead, B, n], or [*lead, B] of a scalar."""
        assert leaf.ref is not None, "a value of the step"
        place = self._places[leaf.ref]
        apart = place.apart(value, lead)
        axes = long_axes(place.shape)
        for axis, at in reversed([*zip(axes, leaf.at)]):
            apart = apart.select(lead + 1 + axis, at)
        apart = apart.to(self.dtype)
        if not leaf.declared.shape:
            return apart.reshape(apart.shape[: lead + 1])
        return apart.flatten(lead + 1)

    def _input(self, at: int, each: Mapping[Ref, Tensor], given: Given) -> Tensor:
        steps, batch, leaf, direct = given.steps, given.batch, self._inputs[at], self._direct[at]
        if leaf.ref is None:
            device = given.xs[0].device if given.xs else None
            return torch.zeros(steps, batch, dtype=self.dtype, device=device)
        if direct is not None:
            value = given.xs[direct]
        else:
            value = _by_steps(each[leaf.ref], self._places[leaf.ref], given)
        value = self._of_sample(leaf, value, 1)
        return value if value.shape[1] == batch else value.expand(steps, batch, *value.shape[2:])

    def _weight(self, at: int, leaf: Leaf, once: Mapping[Ref, Tensor]) -> Tensor:
        if at in self._fixed:
            return self._fixed[at]
        assert leaf.ref is not None, "a value of the step"
        return self._shaped(leaf, once[leaf.ref])

    def _shaped(self, leaf: Leaf, value: Tensor) -> Tensor:
        for at in leaf.at:
            axis = next(axis for axis, n in enumerate(value.shape) if n != 1)
            value = value.select(axis, at)
        if value.dim() != len(leaf.declared.shape):
            value = value.reshape([n for n in value.shape if n != 1])
        return value.to(self.dtype)

    def _start(self, leaf: Leaf, value: Tensor, batch: int) -> Tensor:
        value = value if leaf.ref is None else self._of_sample(leaf, value, 0)
        if value.shape[0] != batch:
            value = value.expand(batch, *value.shape[1:])
        return value.unsqueeze(0)

    # ---- results

    def _leaves_as_is(self, result: Result) -> bool:
        """Whether a result is [B] or [B, n], as torch has it."""
        if result.kind != "cell":
            return False
        place, usual = result.place, isinstance(result.parts, int)
        usual = usual and place.batch == 0 and place.shape[0] == 1 and place.shape == result.base
        usual = usual and (len(place.shape) == 1 or (len(place.shape) == 2 and place.shape[1] > 1))
        return usual and self._type_of(result) is self._results

    def _type_of(self, result: Result) -> torch.dtype:
        return self._results if result.dtype is self._main else result.dtype

    def _leave(self, result: Result, values: Sequence[Tensor], lead: int) -> Tensor:
        """A result of the cell, [*lead, ..] as torch has it."""
        value = _gathered(result.parts, values, 1)
        value = value.reshape(*value.shape[:2], *result.base)
        value = value.expand(*value.shape[:2], *result.place.shape)
        if not lead:
            value = value.squeeze(0)
        return result.place.join(value, lead).to(self._type_of(result))

    def _y(
        self, result: Result, once: Mapping[Ref, Tensor], each: Mapping[Ref, Tensor], given: Given
    ) -> Any:
        ref, inputs = result.value, self.reading.tape.inputs
        if result.kind == "plain":
            return ref
        if ref in inputs:
            return given.xs[inputs.index(ref)]
        value = next(values[ref] for values in (each, once, self._constants) if ref in values)
        return _by_steps(value, result.place if ref not in once else _NO_SAMPLES, given)


_NO_SAMPLES = Place((), None)


def _merged(value: Tensor, place: Place, batch: int) -> Tensor:
    """A value [T, ..] with all steps' samples along the axis of samples."""
    apart = place.apart(value, 1)
    if place.batch is None:
        return apart.expand(-1, batch, *apart.shape[2:]).flatten(0, 1)
    return place.join(apart.flatten(0, 1), 0)


def _by_steps(value: Tensor, place: Place, given: Given) -> Tensor:
    """The reverse of :func:`_merged`; without samples, a value for each step."""
    if place.batch is None:
        return value.expand(given.steps, *value.shape)
    return place.join(place.apart(value, 0).unflatten(0, (given.steps, given.batch)), 1)


def _valid(given: Given) -> Tensor | None:
    """The steps that count, [T, B]; None: all."""
    lengths, mask = given.options.get("lengths"), given.options.get("mask")
    valid = None if mask is None else mask.bool()
    if lengths is not None:
        ends = torch.as_tensor(lengths)
        inside = torch.arange(given.steps, device=ends.device).unsqueeze(1) < ends
        valid = inside if valid is None else valid & inside.to(valid.device)
    return valid


def _gathered(parts: Any, values: Sequence[Tensor], lead: int) -> Tensor:
    """The values [*lead, B, n] of slices, next to one another along n."""
    if isinstance(parts, list):
        return torch.cat([_gathered(part, values, lead) for part in parts], lead + 1)
    value = values[parts]
    return value.unsqueeze(-1) if value.dim() == lead + 1 else value


def _counted(value: Any, result: Result, valid: Tensor | None) -> Any:
    """An output that torch computed, zero where a step does not count."""
    if valid is None or result.place.batch is None or not isinstance(value, Tensor):
        return value
    rows = result.place.apart(value, 1)
    flags = valid.to(value.device).reshape(*valid.shape, *[1] * (rows.dim() - 2))
    return result.place.join(torch.where(flags, rows, torch.zeros_like(rows)), 1)


class _Own(Function):
    """The first tensor, with the gradient of Σ slope · input."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, count: int, *rest: Tensor) -> Tensor:
        ctx.save_for_backward(*rest)
        ctx.count = count
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        inputs, slopes = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        given = [
            (gradient * slope).sum_to_size(value.shape)
            for value, slope in zip(inputs, slopes, strict=True)
        ]
        return None, None, *given, *[None] * len(slopes)
