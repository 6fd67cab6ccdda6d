"""Heads side by side: the program of one head, run for all of them by one kernel (K1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from triton import knobs

from elman.engines.base import Job, Kernel
from elman.engines.triton.kernel import (
    Arrays,
    Call,
    Gradients,
    Sweeping,
    TritonKernel,
    launching,
    precision,
)
from elman.engines.triton.schedule import Schedule
from elman.errors import EngineError
from elman.ir.types import Dim, Shape, atom_size
from elman.plan.program import Program


class _Part:
    """How an argument is divided among heads, dim by dim.

    Args:
        whole, single: its shape with all heads, and of one of them.
        heads: how many.
        sizes: of the dims.
    """

    def __init__(self, whole: Shape, single: Shape, heads: int, sizes: Any) -> None:
        self.heads = heads
        self.index = [
            _index(dim, heads, sizes) if dim != many else None
            for dim, many in zip(single, whole, strict=True)
        ]

    def split(self, value: Tensor) -> Tensor:
        """[heads, …] of a whole argument; what heads share is there for each of them."""
        rank = len(self.index)
        made, divided = value, False
        for place, index in enumerate(self.index):
            if index is None:
                continue
            if divided:
                raise EngineError("a weight is divided along both of its dims")
            axis = value.dim() - rank + place
            flat = index.flatten().to(value.device)
            made = made.index_select(axis, flat).unflatten(axis, index.shape).movedim(axis, 0)
            divided = True
        return made if divided else value.expand(self.heads, *value.shape)

    def merged(self, value: Tensor) -> Tensor:
        """The reverse, of results and gradients [heads, …]: what is shared is summed."""
        rank = len(self.index)
        for place, index in enumerate(self.index):
            if index is None:
                continue
            axis = value.dim() - 1 - rank + place
            flat = value.movedim(0, axis).flatten(axis, axis + 1)
            back = torch.argsort(index.flatten()).to(value.device)
            return flat.index_select(axis, back)
        return value.sum(0)


def _index(dim: Dim, heads: int, sizes: Any) -> Tensor:
    """The units of each head [heads, units of one]: head by head within each atom."""
    found: list[list[int]] = [[] for _ in range(heads)]
    at = 0
    for atom in dim:
        size = atom_size(atom, sizes)
        for own in found:
            own += range(at, at + size)
            at += size
    return torch.tensor(found, dtype=torch.long)


class HeadsKernel(Kernel):
    """All heads of a layer: batched phases head by head, all steps of all heads in one kernel."""

    engine = "triton"

    def __init__(self, job: Job, program: Program, schedule: Schedule) -> None:
        assert job.single is not None, "asked for before"
        self.job, self.heads = job, job.heads
        self.one = TritonKernel(job.single, program, schedule, heads=True)
        sizes = dict(job.spec.dims)

        def parts(whole: Any, single: Any) -> list[_Part]:
            pairs = zip(whole, single, strict=True)
            return [_Part(many.shape, one.shape, self.heads, sizes) for many, one in pairs]

        of, one = job.graph, job.single.graph
        self.inputs = parts(of.inputs, one.inputs)
        self.states = parts(of.states, one.states)
        self.weights = parts(of.weights, one.weights)
        (self.output,) = parts([of.output], [one.output])

    def describe(self) -> dict[str, Any]:
        """Engine, schedule, heads."""
        return {**self.one.describe(), "heads": self.heads}

    def _launch(self, sweep: Sweeping, calls: Sequence[Call], arrays: Arrays) -> None:
        """All steps of all heads; ``arrays`` are [heads, …]."""
        loop, fixed, first = sweep.loop, self.one.fixed, calls[0]
        assert loop is not None, "heads are loops"
        stacked = {**arrays, "vec": torch.stack([call.vec for call in calls])}
        for k, node in enumerate(loop.matrices):
            stacked[f"m{k}"] = torch.stack([call.matrices[node] for call in calls])
        strides = {"r": 1, "b": 1, "t": 1, "h": 0}
        given: list[Any] = []
        for name in loop.pointers:
            base, _, kind = name.partition("_")
            if name in ("T", "B"):
                given.append(first.T if name == "T" else first.B)
            elif kind:
                times = first.B if kind == "t" else 1
                given.append(stacked[base].stride(strides[kind]) * times)
            else:
                given.append(stacked[name])
        sweep.kernel[(-(-first.B // fixed.samples), self.heads)](
            *given,
            N=fixed.samples,
            DT=self.one.element,
            STAGES=fixed.stages,
            PRECISION=precision(),
            INTERPRETED=bool(knobs.runtime.interpret),
            MEET=False,
            num_warps=fixed.warps,
        )

    def _calls(
        self, inputs: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[list[list[Tensor]], list[Call], Arrays]:
        """Each head's weights and call, and the inputs of all heads."""
        xs = [part.split(x) for part, x in zip(self.inputs, inputs, strict=True)]
        own = [part.split(w) for part, w in zip(self.weights, weights, strict=True)]
        each = [[w[n] for w in own] for n in range(self.heads)]
        one = self.one
        calls = [one.call([x[n] for x in xs], one.values(each[n])) for n in range(self.heads)]
        arrays = {name: torch.stack([c.arrays[name] for c in calls]) for name in calls[0].arrays}
        return each, [replace(c, arrays={}) for c in calls], arrays

    def forward(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See :meth:`Kernel.forward`."""
        with launching(states[0]):
            one, layout, sweep = self.one, self.one.layout, self.one.ahead
            T, B = inputs[0].shape[:2]
            N, rows, like = self.heads, T * B, states[0]
            _, calls, arrays = self._calls(inputs, weights)
            shapes = [(B, *leaf_shape) for leaf_shape in self._state_shapes(states)]
            flat = [state.reshape(shape) for state, shape in zip(states, shapes, strict=True)]
            first = [
                part.split(state).reshape(N, B, -1).contiguous()
                for part, state in zip(self.states, flat, strict=True)
            ]
            sequences = [
                one.empty(like, N, T + 1 if kept else 1, B, width)
                for kept, width in zip(one.kept, layout.state_widths, strict=True)
            ]
            for sequence, start in zip(sequences, first, strict=True):
                sequence[:, 0] = start
            if one.output_is_state:
                output = sequences[0][:, 1:]
            else:
                output = one.empty(like, N, T, B, layout.output_width)
                arrays["out"] = output.flatten(1, 2)
            arrays["tape"] = one.empty(like, N, rows, max(1, layout.tape_row))
            arrays["ch"] = one.empty(like, N, rows, max(1, sweep.chunk[1]))
            arrays |= self._rows(sequences)
            self._batched(sweep, "before", calls, arrays)
            last = [torch.empty_like(start) for start in first]
            named = {f"first{k}": value for k, value in enumerate(first)}
            named |= {f"last{k}": value for k, value in enumerate(last)}
            whole = {f"st{k}": sequence.flatten(1, 2) for k, sequence in enumerate(sequences)}
            self._launch(sweep, calls, {**arrays, **whole, **named})
            self._batched(sweep, "after", calls, arrays)
            made = self.output.merged(output if self.output.index else output.squeeze(-1))
            ends = [
                part.merged(end if part.index else end.squeeze(-1)).reshape(state.shape)
                for part, end, state in zip(self.states, last, states, strict=True)
            ]
            saved = (*sequences, arrays["tape"]) if self.job.spec.training else ()
            return made, tuple(ends), saved

    def _state_shapes(self, states: Sequence[Tensor]) -> list[tuple[int, ...]]:
        return [
            tuple(state.shape[-1:]) if part.index else ()
            for part, state in zip(self.states, states, strict=True)
        ]

    def _rows(self, sequences: Sequence[Tensor]) -> Arrays:
        found: Arrays = {}
        for k, sequence in enumerate(sequences):
            if self.one.kept[k]:
                flat = sequence.flatten(1, 2)
                found |= {f"st{k}": flat, f"nx{k}": flat[:, sequence.shape[2] :]}
        return found

    def _batched(self, sweep: Sweeping, phase: str, calls: Sequence[Call], arrays: Arrays) -> None:
        for n, call in enumerate(calls):
            own = {name: value[n] for name, value in arrays.items()}
            self.one.batched(getattr(sweep, phase), call, own)

    def backward(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        saved: Sequence[Tensor],
        d_output: Tensor | None,
        d_last: Sequence[Tensor | None],
        keep: bool,
    ) -> tuple[Gradients, Gradients, Gradients]:
        """See :meth:`Kernel.backward`."""
        sweep = self.one.back
        if sweep is None:
            raise EngineError("this kernel was compiled without a backward")
        with launching(states[0]):
            one, layout, N = self.one, self.one.layout, self.heads
            *sequences, tape = saved
            T, B = inputs[0].shape[:2]
            rows, like = T * B, states[0]
            each, calls, arrays = self._calls(inputs, weights)
            arrays |= self._rows(sequences)
            arrays["tape"] = tape.clone() if keep else tape
            arrays["ch"] = one.empty(like, N, rows, max(1, sweep.chunk[1]))
            width = layout.output_width
            if d_output is None:
                arrays["dy"] = like.new_zeros(1, 1, width).expand(N, rows, width)
            else:
                dy = self.output.split(d_output)
                arrays["dy"] = dy.reshape(N, rows, width).contiguous()
            found = [
                like.new_zeros(N, rows, width) if leaf.name in self.job.spec.wants else None
                for leaf, width in zip(self.job.graph.inputs, layout.input_widths, strict=True)
            ]
            arrays |= {f"din{k}": d for k, d in enumerate(found) if d is not None}
            self._batched(sweep, "before", calls, arrays)
            shapes, widths = self._state_shapes(states), layout.state_widths
            ends = [
                like.new_zeros(N, B, width)
                if d is None
                else part.split(d.reshape(B, *shape)).reshape(N, B, width).contiguous()
                for d, part, shape, width in zip(d_last, self.states, shapes, widths, strict=True)
            ]
            begun = [torch.empty_like(end) for end in ends]
            named = {f"dlast{k}": value for k, value in enumerate(ends)}
            named |= {f"dfirst{k}": value for k, value in enumerate(begun)}
            whole = {f"st{k}": sequence.flatten(1, 2) for k, sequence in enumerate(sequences)}
            self._launch(sweep, calls, {**arrays, **whole, **named})
            self._batched(sweep, "after", calls, arrays)
            d_each = [
                one.rate.gradients(
                    one.totals(sweep, {name: value[n] for name, value in arrays.items()}), each[n]
                )
                for n in range(N)
            ]
            d_weights = tuple(
                None if parts[0] is None else part.merged(torch.stack(parts))
                for part, parts in zip(self.weights, zip(*d_each, strict=True), strict=True)
            )
            d_inputs = tuple(
                None if d is None else part.merged(d.reshape(N, *_lead(x, part), *_tail(d, part)))
                for d, part, x in zip(found, self.inputs, inputs, strict=True)
            )
            d_states = tuple(
                part.merged(d if part.index else d.squeeze(-1)).reshape(state.shape)
                for part, d, state in zip(self.states, begun, states, strict=True)
            )
            return d_inputs, d_states, d_weights


def _lead(x: Tensor, part: _Part) -> tuple[int, ...]:
    return tuple(x.shape[:2])


def _tail(d: Tensor, part: _Part) -> tuple[int, ...]:
    return tuple(d.shape[2:]) if part.index else ()
