"""Heads side by side: the program of one head, run for all of them by every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import Job, Kernel
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.triton.kernel import TritonKernel
from elman.engines.triton.schedule import TritonSchedule
from elman.errors import EngineError
from elman.ir.types import Dim, Shape, gate_block_size
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
        self._orders: dict[torch.device, list[tuple[Tensor, Tensor] | None]] = {}

    def _order(self, device: torch.device) -> list[tuple[Tensor, Tensor] | None]:
        """For each dim, the units head by head, and where each unit has gone."""
        if device not in self._orders:
            flat = [None if index is None else index.flatten() for index in self.index]
            self._orders[device] = [
                None if order is None else (order.to(device), torch.argsort(order).to(device))
                for order in flat
            ]
        return self._orders[device]

    def split(self, value: Tensor) -> Tensor:
        """[heads, …] of a whole argument; what heads share is there for each of them."""
        rank = len(self.index)
        made, divided = value, False
        for place, order in enumerate(self._order(value.device)):
            if order is None:
                continue
            if divided:
                raise EngineError("a weight is divided along both of its dims")
            axis = value.dim() - rank + place
            parts = made.index_select(axis, order[0]).unflatten(axis, (self.heads, -1))
            made, divided = parts.movedim(axis, 0), True
        return made if divided else value.expand(self.heads, *value.shape)

    def merged(self, value: Tensor) -> Tensor:
        """The reverse, of results and gradients [heads, …]: what is shared is summed."""
        rank = len(self.index)
        for place, order in enumerate(self._order(value.device)):
            if order is not None:
                axis = value.dim() - 1 - rank + place
                flat = value.movedim(0, axis).flatten(axis, axis + 1)
                return flat.index_select(axis, order[1])
        return value.sum(0)


def _index(dim: Dim, heads: int, sizes: Any) -> Tensor:
    """The units of each head [heads, units of one]: head by head within each gate block."""
    found: list[list[int]] = [[] for _ in range(heads)]
    at = 0
    for gate_block in dim:
        size = gate_block_size(gate_block, sizes)
        for own in found:
            own += range(at, at + size)
            at += size
    return torch.tensor(found, dtype=torch.long)


class HeadsKernel(Kernel):
    """All heads of a layer, side by side in every kernel."""

    engine = "triton"
    packs = True

    def __init__(self, job: Job, program: Program, schedule: TritonSchedule) -> None:
        assert job.single is not None, "asked for before"
        self.job, self.heads = job, job.heads
        self.one = TritonKernel(job.single, program, schedule, job.heads)
        sizes = dict(job.spec.dims)

        def parts(whole: Any, single: Any) -> list[_Part]:
            pairs = zip(whole, single, strict=True)
            return [_Part(many.shape, one.shape, self.heads, sizes) for many, one in pairs]

        of, one = job.graph, job.single.graph
        self.inputs = parts(of.inputs, one.inputs)
        self.states = parts(of.states, one.states)
        self.weights = parts(of.weights, one.weights)
        self.output = _Part(of.output_shape, one.output_shape, self.heads, sizes)

    def describe(self) -> dict[str, Any]:
        """Engine, schedule, heads."""
        return {**self.one.describe(), "heads": self.heads}

    def _split(self, call: Call) -> Call:
        """The call head by head; states [heads, B, n]."""
        flat = [_flat(state, part) for state, part in zip(call.states, self.states, strict=True)]
        return Call(
            _split(self.inputs, call.inputs),
            _split(self.states, flat),
            _split(self.weights, call.weights),
            call.packed,
        )

    def forward(self, call: Call) -> Result:
        """See :meth:`Kernel.forward`."""
        output, last, saved = self.one.forward(self._split(call))
        ends = _merged(self.states, last, call.states)
        return Result(self.output.merged(output), tuple(e for e in ends if e is not None), saved)

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """See :meth:`Kernel.backward`."""
        d_output = cotangents.output
        d_last = tuple(
            None if d is None else part.split(_flat(d, part))
            for d, part in zip(cotangents.last, self.states, strict=True)
        )
        ends = Cotangents(None if d_output is None else self.output.split(d_output), d_last)
        of_heads = self.one.backward(self._split(call), saved, ends, keep)
        return Gradients(
            _merged(self.inputs, of_heads.inputs, call.inputs),
            _merged(self.states, of_heads.states, call.states),
            _merged(self.weights, of_heads.weights, call.weights),
        )


def _flat(state: Tensor, part: _Part) -> Tensor:
    """A state [.., B, n], or [.., B], without what stands before."""
    return state.reshape(state.shape[-1 - len(part.index) :])


def _split(parts: Sequence[_Part], values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(part.split(value) for part, value in zip(parts, values, strict=True))


def _merged(
    parts: Sequence[_Part], values: Sequence[Tensor | None], like: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    return tuple(
        None if value is None else part.merged(value).reshape(whole.shape)
        for part, value, whole in zip(parts, values, like, strict=True)
    )
