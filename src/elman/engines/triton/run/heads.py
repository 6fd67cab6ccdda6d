"""Heads side by side: the program of one head, run for all of them by every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import Job
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.triton.device.call_graphs import CapturedKernel
from elman.engines.triton.device.schedule import TritonSchedule
from elman.engines.triton.run.kernel import TritonKernel
from elman.errors import EngineError
from elman.ir.types import Dim, Shape, gate_block_size
from elman.plan.program import Program


class _Division:
    """How an argument is divided among heads, dim by dim.

    Args:
        combined, single: its shape with all heads, and for one of them.
        heads: number of heads.
        sizes: of the dims.
    """

    def __init__(self, combined: Shape, single: Shape, heads: int, sizes: Any) -> None:
        self.heads = heads
        self.index = [
            _index(dim, heads, sizes) if dim != full else None
            for dim, full in zip(single, combined, strict=True)
        ]
        self._orders: dict[torch.device, list[tuple[Tensor, Tensor] | None]] = {}

    def _order(self, device: torch.device) -> list[tuple[Tensor, Tensor] | None]:
        """For each dim, the order of units head by head, and its inverse."""
        if device not in self._orders:
            flat = [None if index is None else index.flatten() for index in self.index]
            self._orders[device] = [
                None if order is None else (order.to(device), torch.argsort(order).to(device))
                for order in flat
            ]
        return self._orders[device]

    def split(self, value: Tensor) -> Tensor:
        """[heads, …] of a whole argument; shared arguments are repeated for each head."""
        rank = len(self.index)
        result, divided = value, False
        for place, order in enumerate(self._order(value.device)):
            if order is None:
                continue
            if divided:
                raise EngineError("a weight is divided along both of its dims")
            axis = value.dim() - rank + place
            by_head = result.index_select(axis, order[0]).unflatten(axis, (self.heads, -1))
            result, divided = by_head.movedim(axis, 0), True
        return result if divided else value.expand(self.heads, *value.shape)

    def merged(self, value: Tensor) -> Tensor:
        """The inverse, for results and gradients [heads, …]; gradients of shared arguments are
        summed."""
        rank = len(self.index)
        for place, order in enumerate(self._order(value.device)):
            if order is not None:
                axis = value.dim() - 1 - rank + place
                flat = value.movedim(0, axis).flatten(axis, axis + 1)
                return flat.index_select(axis, order[1])
        return value.sum(0)


def _index(dim: Dim, heads: int, sizes: Any) -> Tensor:
    """The units of each head [heads, units of one]: head by head within each gate block."""
    units: list[list[int]] = [[] for _ in range(heads)]
    at = 0
    for gate_block in dim:
        size = gate_block_size(gate_block, sizes)
        for head_units in units:
            head_units += range(at, at + size)
            at += size
    return torch.tensor(units, dtype=torch.long)


class HeadsKernel(CapturedKernel):
    """All heads of a layer, side by side in every kernel."""

    engine = "triton"

    def __init__(self, job: Job, program: Program, schedule: TritonSchedule) -> None:
        assert job.single is not None, "the engine asks for heads only if the job has them"
        super().__init__(schedule)
        self.job, self.heads = job, job.heads
        self.head_kernel = TritonKernel(job.single, program, schedule, job.heads)
        sizes = dict(job.spec.dims)

        def divisions(combined: Any, single: Any) -> list[_Division]:
            pairs = zip(combined, single, strict=True)
            return [_Division(full.shape, leaf.shape, self.heads, sizes) for full, leaf in pairs]

        graph, head_graph = job.graph, job.single.graph
        self.inputs = divisions(graph.inputs, head_graph.inputs)
        self.states = divisions(graph.states, head_graph.states)
        self.weights = divisions(graph.weights, head_graph.weights)
        self.output = _Division(graph.output_shape, head_graph.output_shape, self.heads, sizes)

    def describe(self) -> dict[str, Any]:
        """Engine, schedule, heads."""
        return {**self.head_kernel.describe(), "heads": self.heads}

    def _split(self, call: Call) -> Call:
        """The call head by head; states [heads, B, n]."""
        flat = [_flat(state, part) for state, part in zip(call.states, self.states, strict=True)]
        return Call(
            _split(self.inputs, call.inputs),
            _split(self.states, flat),
            _split(self.weights, call.weights),
            call.packed,
        )

    def compute_forward(self, call: Call) -> Result:
        output, last, saved = self.head_kernel.compute_forward(self._split(call))
        ends = _merged(self.states, last, call.states)
        return Result(self.output.merged(output), tuple(e for e in ends if e is not None), saved)

    def compute_backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        d_output = cotangents.output
        d_last = tuple(
            None if d is None else part.split(_flat(d, part))
            for d, part in zip(cotangents.last, self.states, strict=True)
        )
        ends = Cotangents(None if d_output is None else self.output.split(d_output), d_last)
        of_heads = self.head_kernel.compute_backward(self._split(call), saved, ends, keep)
        return Gradients(
            _merged(self.inputs, of_heads.inputs, call.inputs),
            _merged(self.states, of_heads.states, call.states),
            _merged(self.weights, of_heads.weights, call.weights),
        )


def _flat(state: Tensor, division: _Division) -> Tensor:
    """A state [.., B, n], or [.., B], without its leading axes."""
    return state.reshape(state.shape[-1 - len(division.index) :])


def _split(divisions: Sequence[_Division], values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(division.split(value) for division, value in zip(divisions, values, strict=True))


def _merged(
    divisions: Sequence[_Division], values: Sequence[Tensor | None], like: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    return tuple(
        None if value is None else division.merged(value).reshape(argument.shape)
        for division, value, argument in zip(divisions, values, like, strict=True)
    )
