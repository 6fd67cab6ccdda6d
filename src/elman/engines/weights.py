"""Work once per call, by torch: loop-invariant values, and weight gradients from their sums.

Weights in half precision are widened to float32 first: otherwise each operation on a weight would
round, and all steps would multiply by the error (gradients of theta of ``lru`` were off by 2 %).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elman.engines.arrays import Arrays
from elman.engines.base import Job
from elman.engines.gate_blocks import GateBlockViews
from elman.ir.evaluate import apply, evaluate
from elman.ir.graph import Node, walk
from elman.ir.ops import OPS

Values = dict[Node, Tensor]


@dataclass(frozen=True, eq=False)
class _Plan:
    """How values of weight rate are computed.

    Attributes:
        blocks: weight blocks that are read.
        computed: all other values, in order.
        leading: whether all computed values allow leading axes.
    """

    blocks: tuple[Node, ...]
    computed: tuple[Node, ...]
    leading: bool


class WeightRate:
    """Weights of a job and their loop-invariant values."""

    def __init__(self, job: Job) -> None:
        self.graph, self.pair, self.wants = job.graph, job.pair, job.spec.wants
        self.sizes = dict(job.spec.dims)
        step = job.pair.step
        self._views = GateBlockViews(job.graph.weights, step.weights, self.sizes)
        self.gradient_nodes = {
            leaf: d
            for leaf, d in zip(step.weights, job.pair.d_weights, strict=True)
            if d is not None and leaf.name in job.spec.wants
        }
        read = set(walk(self.gradient_nodes.values()))
        self._plans: dict[tuple[Node, ...], _Plan] = {}
        self.targets = {target: d for target, d in job.pair.d_invariants if d in read}

    def values(
        self,
        weights: Sequence[Tensor],
        roots: Sequence[Node] | None = None,
        *,
        heads: bool = False,
    ) -> Values:
        """Loop-invariant values with everything below them; by default all weight blocks.

        Blocks have the type of the weights; computed values are float32 or wider.

        Args:
            weights: in declared order.
            roots: the wanted values.
            heads: whether weights, hence values, are [heads, …].
        """
        plan = self._plan(tuple(self.pair.step.weights if roots is None else roots))
        if heads and not plan.leading:
            leaves: list[Node] = []

            def of_head(*head_weights: Tensor) -> tuple[Tensor, ...]:
                values = self.values(head_weights, roots)
                leaves[:] = values
                return tuple(values.values())

            stacked: tuple[Tensor, ...] = torch.vmap(of_head)(*weights)
            return dict(zip(leaves, stacked, strict=True))
        by_name = {leaf.name: w for leaf, w in zip(self.graph.weights, weights, strict=True)}
        values = self._views.gate_blocks(plan.blocks, by_name)
        if plan.computed:
            like = _widened(weights[0]) if len(weights) else torch.empty(0, dtype=torch.float64)
            arrays = Arrays(like.dtype, like.device)
            for value in plan.computed:
                arguments = tuple(_widened(values[arg]) for arg in value.args)
                values[value] = apply(arrays, value, arguments, self.sizes)
        return values

    def _plan(self, roots: tuple[Node, ...]) -> _Plan:
        """Evaluation plan of some values, cached."""
        if roots not in self._plans:
            blocks = set(self.pair.step.weights)
            order = list(walk(roots))
            computed = tuple(value for value in order if value not in blocks)
            self._plans[roots] = _Plan(
                tuple(value for value in order if value in blocks),
                computed,
                all(OPS[value.op].kind == "pointwise" for value in computed),
            )
        return self._plans[roots]

    def gradients(
        self,
        totals: Mapping[Node, Tensor],
        weights: Sequence[Tensor],
        samples: int = 0,
        *,
        heads: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the wanted weights from the summed cotangents of loop-invariant values. Each
        has its weight's type, and is rounded once.

        Args:
            totals: sums by target, of the weights' type or a wider one; with a leading axis of
                ``samples`` unless that is 0.
            weights: in declared order.
            samples: gradients are [samples, …]; 0: summed over samples.
            heads: whether totals, weights and gradients are [heads, …].
        """
        sums = {leaf: totals[target] for target, leaf in self.targets.items() if target in totals}
        plain = all(d in sums for d in self.gradient_nodes.values())  # the sums are the gradients
        values: Values = {}
        if not plain:
            values = {at: _widened(v) for at, v in self.values(weights, heads=heads).items()}
            sums = {leaf: _widened(total) for leaf, total in sums.items()}
        gradients: list[Tensor | None] = []
        for leaf, weight in zip(self.graph.weights, weights, strict=True):
            if leaf.name not in self.wants:
                gradients.append(None)
                continue
            shape = (samples, *weight.shape) if samples else weight.shape
            blocks = [block for block in self.pair.step.weights if block.name == leaf.name]
            pieces = [self._gradient(block, values, sums, samples, heads) for block in blocks]
            if len(pieces) == 1 and pieces[0] is not None and pieces[0].shape == shape:
                whole = pieces[0].to(weight.dtype)
                # two weights may have one sum, but their gradients must not share memory
                is_shared = any(whole is gradient for gradient in gradients)
                gradients.append(whole.clone() if is_shared else whole)
                continue
            zero = weight.new_zeros(())
            dense = [zero if piece is None else piece for piece in pieces]
            gradients.append(self._views.joined(blocks, dense, weight.new_empty(shape)))
        return tuple(gradients)

    def _gradient(
        self, block: Node, values: Values, sums: dict[Node, Tensor], samples: int, heads: bool
    ) -> Tensor | None:
        d = self.gradient_nodes.get(block)
        if d is None or d in sums:
            return None if d is None else sums[d]
        sample = next(iter(values.values()))
        arrays = Arrays(sample.dtype, sample.device)

        mapped = (*values.values(), *sums.values()) if heads else tuple(sums.values())
        names = (*values, *sums) if heads else tuple(sums)

        def gradient(*mapped_values: Tensor) -> Tensor:
            leaf_values = {**values, **dict(zip(names, mapped_values, strict=True))}
            return evaluate(arrays, (d,), leaf_values, self.sizes)[0]

        return torch.vmap(gradient)(*mapped) if samples or heads else gradient(*mapped)


def _widened(value: Tensor) -> Tensor:
    """A tensor of float32 at least."""
    return value.float() if value.dtype.itemsize < torch.float32.itemsize else value
