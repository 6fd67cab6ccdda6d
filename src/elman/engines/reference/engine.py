"""The oracle: one step at a time, as the cell is written, differentiated by torch.

It shares no rewrite, no adjoint and no plan with the engines it judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from elman.engines.arrays import Arrays
from elman.engines.base import DifferentiableKernel, Engine, Job, Kernel
from elman.engines.call import Call, Result
from elman.engines.precision import BF16
from elman.engines.reference.rounding import round_products
from elman.ir.evaluate import node_functions
from elman.ir.graph import Graph, Node
from elman.ir.types import shape_size
from elman.plan.spec import OPTIMIZATIONS, USUAL, PlanOptions

# a node, its function and its arguments -> its value
Change = Callable[[Node, Callable[..., Tensor], list[Tensor]], Tensor]


def steps(
    graph: Graph,
    dims: dict[str, int],
    call: Call,
    change: Change | None = None,
) -> Iterator[tuple[dict[Node, Tensor], list[Tensor], Tensor]]:
    """Run one step after another: every value of the graph, the next states, the output (several
    outputs side by side).

    Args:
        graph, dims: the step as written, and the sizes of its dims.
        call: dense, as :meth:`Kernel.forward` takes it.
        change: computes each value instead of its op.
    """
    states: Sequence[Tensor] = call.states
    arrays = Arrays(states[0].dtype, states[0].device)
    widths = [shape_size(value.shape, dims) for value in graph.outputs]
    weights: dict[Node, Tensor] = dict(zip(graph.weights, call.weights, strict=True))
    order = node_functions(arrays, graph.roots, {*graph.leaves}, dims)
    for row in zip(*(x.unbind(0) for x in call.inputs), strict=True):
        values = dict(weights)
        values.update(zip(graph.inputs, row, strict=True))
        values.update(zip(graph.states, states, strict=True))
        for node, compute in order:
            args = [values[arg] for arg in node.args]
            values[node] = compute(*args) if change is None else change(node, compute, args)
        results = [values[root] for root in graph.roots]
        after, returned = results[: len(states)], results[len(states) :]
        states = [widened(new, old.shape) for new, old in zip(after, states, strict=True)]
        batch = states[0].shape[0]
        outputs = [widened(v, (batch, *width)) for v, width in zip(returned, widths, strict=True)]
        yield values, states, side_by_side(outputs)


class ReferenceKernel(DifferentiableKernel):
    """``h[t] = cell(x[t], h[t-1])`` for t = 0 … T-1 by torch ops; any dtype and device."""

    engine = "reference"

    def __init__(self, graph: Graph, dims: dict[str, int], change: Change | None = None) -> None:
        self._graph, self._dims, self._change = graph, dims, change

    def forward(self, call: Call) -> Result:
        """Run all steps; see :class:`Kernel`."""
        run = steps(self._graph, self._dims, call, self._change)
        ends, outputs = zip(*((after, output) for _, after, output in run), strict=True)
        return Result(torch.stack(outputs), tuple(ends[-1]))


def widened(value: Tensor, shape: Sequence[int]) -> Tensor:
    """A value that does not depend on the sample, repeated for every sample."""
    return value if value.shape == tuple(shape) else value.expand(*shape)


def side_by_side(outputs: list[Tensor]) -> Tensor:
    """Several outputs [B, n] or [B] as one [B, Σn]; a single output unchanged."""
    if len(outputs) == 1:
        return outputs[0]
    return torch.cat([v if v.dim() > 1 else v.unsqueeze(-1) for v in outputs], -1)


def change_of(job: Job) -> Change | None:
    """The rounding of a job's products; None if it has none."""
    return round_products if job.spec.precision == BF16 else None


class Reference(Engine):
    """Runs everything, slowly."""

    name = "reference"
    leaves_out = frozenset(OPTIMIZATIONS)  # it has no optimizations

    def lacks_bf16(self, options: PlanOptions = USUAL) -> str | None:
        """None: torch rounds to bfloat16 everywhere."""
        return None

    def lacks(self, device: str, dtype: str) -> str | None:
        """None: torch ops run everywhere."""
        return None

    def supports(self, job: Job) -> str | None:
        """None: there is no cell it cannot run."""
        return None

    def compile(self, job: Job, schedule: str | None = None) -> Kernel:
        """Nothing is compiled."""
        return ReferenceKernel(job.graph, dict(job.spec.dims), change_of(job))


ENGINE = Reference()
