"""Runs a step that was read: what torch computes before the loop, the loop, what comes after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from elman.nn.layout.layout import unwrap_single
from elman.steps import arrays as arr
from elman.steps.layer import StepLayer
from elman.steps.reading import Leaf, Place, Reading, Result
from elman.steps.tape import OWN_GRADIENT, Ref, is_ref
from elman.torch_internals import pytree


class Program:
    """A step that was read, with the layer that runs it.

    Args:
        reading: of the step.
        inputs, carries: references of what the step was given.
        engine: a name, or ``auto``.
        dtype: of the formula. results: of its results, where that is another one.
    """

    def __init__(
        self,
        reading: Reading,
        inputs: Sequence[Ref],
        carries: Sequence[Ref],
        engine: str,
        dtype: torch.dtype,
        results: torch.dtype | None = None,
    ) -> None:
        self.reading, self.inputs, self.carries, self.dtype = reading, inputs, carries, dtype
        self._results = results or dtype
        whole = all(result.kind == "cell" for result in (*reading.carries, *reading.ys))
        whole = whole and not (reading.before[1] or reading.after)
        self.layer = StepLayer(reading.cell, engine, whole)
        tape = reading.tape
        self._places = {
            ref: Place.of(tape.tensors[ref.number].shape, tape.batch)
            for ref in {
                *inputs,
                *carries,
                *[leaf.ref for leaf in reading.leaves if leaf.ref is not None],
            }
        }
        floats = [tape.tensors[r.number].dtype for r in (*carries, *inputs)]
        self._main = next((kind for kind in floats if kind.is_floating_point), dtype)
        self.counts = any(
            not (kind.is_floating_point or kind is torch.bool) for kind in floats[: len(carries)]
        )
        self._captured = [*map(Ref, tape.captured)]
        self._handed_on = [
            (ref, at) for at, ref in enumerate(carries) if reading.carries[at].kind == "static"
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
            inputs.index(leaf.ref) if leaf.ref in inputs else None for leaf in self._inputs
        ]
        self._simple = [at for at in self._direct if at is not None] if self._is_simple() else []

    def run(
        self,
        xs: Sequence[Tensor],
        carry: Sequence[Tensor],
        captured: Sequence[Tensor],
        sizes: tuple[int, int],
        options: Mapping[str, Any],
    ) -> tuple[list[Any], list[Any]]:
        """Run the loop.

        Args:
            xs: leaves [T, ..].
            carry: leaves.
            captured: tensors that the step closes over, as they are now.
            sizes: T and B.
            options: of the layer's call.

        Returns:
            Leaves of the last carry, and of the outputs [T, ..].
        """
        if self._simple and not options:
            return self._run_simple(xs, carry, captured)
        layer_call, once, each = self.enter(xs, carry, captured, sizes, options)
        layer, x, state, call = layer_call
        out, last = layer.run(x, state, call)
        lasts = last if isinstance(last, tuple) else (last,)
        outs = out if isinstance(out, tuple) else (out,)
        ends = [
            self._leave(result, lasts, 0) if result.kind == "cell" else carry[at]
            for at, result in enumerate(self.reading.carries)
        ]
        if self.reading.after:
            self._after(outs, carry, each, sizes)
        valid = self._valid(options, sizes[0])
        ys = [
            self._leave(result, outs, 1)
            if result.kind == "cell"
            else _counted(self._y(result, xs, once, each, sizes), result, valid)
            for result in self.reading.ys
        ]
        return ends, ys

    def enter(
        self,
        xs: Sequence[Tensor],
        carry: Sequence[Tensor],
        captured: Sequence[Tensor],
        sizes: tuple[int, int],
        options: Mapping[str, Any],
    ) -> tuple[Any, dict[Ref, Tensor], dict[Ref, Tensor]]:
        """What comes before the loop; arguments as of :meth:`run`.

        Returns:
            The layer with its weights; x, the state and the options of its call; what torch
            computed once, and for each step.
        """
        reading, batch = self.reading, sizes[1]
        once: dict[Ref, Tensor] = dict(zip(self._captured, captured))
        once.update({ref: carry[at] for ref, at in self._handed_on})
        each: dict[Ref, Tensor] = {}
        if reading.before[0]:
            once.update(self._constants)
            self._replay(reading.before[0], once, 0)
        if reading.before[1] or reading.after:
            each = {**once, **self._constants, **self._rows(xs, once, sizes)}
            self._replay(reading.before[1], each, sizes[0] * batch)
        x = [self._input(at, xs, each, sizes) for at in range(len(self._inputs))]
        layer = self._with_weights(captured, once)
        call: dict[str, Any] = dict(options)
        if self._static:
            values = [self._of_sample(leaf, once[leaf.ref], 0) for leaf in self._static if leaf.ref]
            call["static"] = tuple([value.expand(batch, *value.shape[1:]) for value in values])
        starts = [self._start(leaf, carry[at], batch) for at, leaf in self._states]
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
        reading, tensors = self.reading, self.reading.tape.tensors
        leaves = [*self._inputs, *[leaf for group in reading.states for leaf in group]]
        results = [*reading.carries, *reading.ys]
        return (
            bool(self._states)
            and self._results is self.dtype
            and not (any(reading.before) or reading.after or self._static)
            and None not in self._direct
            and all(self._is_usual(leaf) for leaf in leaves)
            and all(tensors[leaf.ref.number].dtype is self.dtype for leaf in leaves if leaf.ref)
            and all(self._leaves_as_is(result) for result in results)
        )

    def _run_simple(
        self, xs: Sequence[Tensor], carry: Sequence[Tensor], captured: Sequence[Tensor]
    ) -> tuple[list[Any], list[Any]]:
        before, layer = self._last
        if captured is not before:
            layer = self._with_weights(captured, dict(zip(self._captured, captured)))
        x = [xs[at] for at in self._simple]
        starts = [carry[at].unsqueeze(0) for at, _ in self._states]
        out, last = layer.run(unwrap_single(x), unwrap_single(starts), {})
        lasts = last if isinstance(last, tuple) else (last,)
        outs = out if isinstance(out, tuple) else (out,)
        ends = [lasts[result.parts].squeeze(0) for result in self.reading.carries]
        return ends, [outs[result.parts] for result in self.reading.ys]

    # ---- what torch computes

    def _rows(
        self, xs: Sequence[Tensor], once: Mapping[Ref, Tensor], sizes: tuple[int, int]
    ) -> dict[Ref, Tensor]:
        """Inputs, and static ones, with all steps' samples along the axis of samples."""
        steps, _ = sizes
        rows: dict[Ref, Tensor] = {}
        for ref, value in zip(self.inputs, xs, strict=True):
            rows[ref] = self._merged(value, self._places[ref], sizes)
        for leaf in self._static:
            if leaf.ref is not None:
                wide = once[leaf.ref].expand(steps, *once[leaf.ref].shape)
                rows[leaf.ref] = self._merged(wide, self._places[leaf.ref], sizes)
        return rows

    def _merged(self, value: Tensor, place: Place, sizes: tuple[int, int]) -> Tensor:
        apart = place.apart(value, 1)
        if place.batch is None:
            apart = apart.expand(-1, sizes[1], *apart.shape[2:])
            return apart.flatten(0, 1)
        return place.join(apart.flatten(0, 1), 0)

    def _replay(self, entries: Sequence[int], values: dict[Ref, Tensor], rows: int) -> None:
        """Run operations of the tape on other tensors.

        Args:
            rows: in place of the batch of the tape.
        """
        tape = self.reading.tape

        def number(n: Any) -> Any:
            is_batch = type(n) is int and n and n % tape.batch == 0
            return n // tape.batch * rows if is_batch else n

        def argument(value: Any) -> Any:
            return values[value] if isinstance(value, Ref) else number(value)

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

    def _after(
        self,
        outs: Sequence[Tensor],
        carry: Sequence[Tensor],
        each: dict[Ref, Tensor],
        sizes: tuple[int, int],
    ) -> None:
        for ref, result in self.reading.exported.items():
            value = self._leave(result, outs, 1)
            each[ref] = self._merged(value, result.place, sizes)
        for ref, value in zip(self.carries, carry, strict=True):
            if ref not in each:
                wide = value.expand(sizes[0], *value.shape)
                each[ref] = self._merged(wide, self._places[ref], sizes)
        self._replay(self.reading.after, each, sizes[0] * sizes[1])

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
        axes = arr.long_axes(place.shape)
        for axis, at in reversed([*zip(axes, leaf.at)]):
            apart = apart.select(lead + 1 + axis, at)
        apart = apart.to(self.dtype)
        if not leaf.declared.shape:
            return apart.reshape(apart.shape[: lead + 1])
        return apart.flatten(lead + 1)

    def _input(
        self,
        at: int,
        xs: Sequence[Tensor],
        each: Mapping[Ref, Tensor],
        sizes: tuple[int, int],
    ) -> Tensor:
        (steps, batch), leaf, direct = sizes, self._inputs[at], self._direct[at]
        if leaf.ref is None:
            device = xs[0].device if xs else None
            return torch.zeros(steps, batch, dtype=self.dtype, device=device)
        if direct is not None:
            value = xs[direct]
        else:
            place, value = self._places[leaf.ref], each[leaf.ref]
            if place.batch is None:
                value = value.expand(steps, *value.shape)
            else:
                value = place.join(place.apart(value, 0).unflatten(0, (steps, batch)), 1)
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

    def _valid(self, options: Mapping[str, Any], steps: int) -> Tensor | None:
        """The steps that count, [T, B]; None: all."""
        lengths, mask = options.get("lengths"), options.get("mask")
        valid = None if mask is None else mask.bool()
        if lengths is not None:
            ends = torch.as_tensor(lengths)
            inside = torch.arange(steps, device=ends.device).unsqueeze(1) < ends
            valid = inside if valid is None else valid & inside.to(valid.device)
        return valid

    def _y(
        self,
        result: Result,
        xs: Sequence[Tensor],
        once: Mapping[Ref, Tensor],
        each: Mapping[Ref, Tensor],
        sizes: tuple[int, int],
    ) -> Any:
        if result.kind == "plain":
            return result.value
        steps, batch = sizes
        if result.value in self.inputs:
            return xs[self.inputs.index(result.value)]
        value = each.get(result.value, once.get(result.value))
        value = self._constants.get(result.value) if value is None else value
        assert value is not None, "torch computed it"
        if result.place.batch is None or result.value in once:
            return value.expand(steps, *value.shape)
        apart = result.place.apart(value, 0).unflatten(0, (steps, batch))
        return result.place.join(apart, 1)


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
