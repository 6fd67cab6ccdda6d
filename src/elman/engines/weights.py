"""What happens once per call, by torch: values of weight rate, and gradients from finished sums."""

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
        blocks: of the weights, which are read.
        computed: everything else, in order.
        leading: whether leading axes go through all of it.
    """

    blocks: tuple[Node, ...]
    computed: tuple[Node, ...]
    leading: bool


class WeightRate:
    """The weights of a job, and what depends on them alone."""

    def __init__(self, job: Job) -> None:
        self.graph, self.pair, self.wants = job.graph, job.pair, job.spec.wants
        self.sizes = dict(job.spec.dims)
        step = job.pair.step
        self._views = GateBlockViews(job.graph.weights, step.weights, self.sizes)
        self.wanted = {
            leaf: d
            for leaf, d in zip(step.weights, job.pair.d_weights, strict=True)
            if d is not None and leaf.name in job.spec.wants
        }
        read = set(walk(self.wanted.values()))
        self._plans: dict[tuple[Node, ...], _Plan] = {}
        self.targets = {target: d for target, d in job.pair.d_invariants if d in read}

    def values(
        self,
        weights: Sequence[Tensor],
        roots: Sequence[Node] | None = None,
        *,
        heads: bool = False,
    ) -> Values:
        """Some values of weight rate, and what they are computed from; by default all blocks.

        Args:
            weights: in declared order.
            roots: what is asked for.
            heads: whether weights are [heads, …]; values are, too.
        """
        plan = self._plan(tuple(self.pair.step.weights if roots is None else roots))
        if heads and not plan.leading:
            leaves: list[Node] = []

            def of_one(*own: Tensor) -> tuple[Tensor, ...]:
                found = self.values(own, roots)
                leaves[:] = found
                return tuple(found.values())

            made: tuple[Tensor, ...] = torch.vmap(of_one)(*weights)
            return dict(zip(leaves, made, strict=True))
        named = {leaf.name: w for leaf, w in zip(self.graph.weights, weights, strict=True)}
        known = self._views.gate_blocks(plan.blocks, named)
        if plan.computed:
            arrays = Arrays(weights[0].dtype, weights[0].device)
            for value in plan.computed:
                given = tuple(known[arg] for arg in value.args)
                known[value] = apply(arrays, value, given, self.sizes)
        return known

    def _plan(self, roots: tuple[Node, ...]) -> _Plan:
        """How some values are computed, found once."""
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
        whole: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the wanted weights from the sums of the loop-invariant values they went
        into.

        Args:
            totals: by the sums' targets; with a leading axis of ``samples`` if there are any.
            weights: in declared order.
            samples: gradients are [samples, …]; 0: one for all.
            heads: whether totals, weights and gradients are [heads, …].
            whole: gradients that are known by the weights' names.
        """
        sums = {leaf: totals[target] for target, leaf in self.targets.items() if target in totals}
        plain = all(d in sums for d in self.wanted.values())  # nothing is left to compute
        known = {} if plain else self.values(weights, heads=heads)
        found: list[Tensor | None] = []
        for leaf, weight in zip(self.graph.weights, weights, strict=True):
            if leaf.name not in self.wants:
                found.append(None)
                continue
            if whole is not None and leaf.name in whole:
                found.append(whole[leaf.name])
                continue
            shape = (samples, *weight.shape) if samples else weight.shape
            blocks = [block for block in self.pair.step.weights if block.name == leaf.name]
            parts = [self._gradient(block, known, sums, samples, heads) for block in blocks]
            if len(parts) == 1 and parts[0] is not None and parts[0].shape == shape:
                # beside gradients that are known, it may be a part of one
                found.append(parts[0] if whole is None else parts[0].clone())
                continue
            zero = weight.new_zeros(())
            each = [zero if part is None else part for part in parts]
            found.append(self._views.joined(blocks, each, weight.new_empty(shape)))
        return tuple(found)

    def _gradient(
        self, block: Node, known: Values, sums: dict[Node, Tensor], samples: int, heads: bool
    ) -> Tensor | None:
        d = self.wanted.get(block)
        if d is None or d in sums:
            return None if d is None else sums[d]
        some = next(iter(known.values()))
        arrays = Arrays(some.dtype, some.device)

        own = (*known.values(), *sums.values()) if heads else tuple(sums.values())
        names = (*known, *sums) if heads else tuple(sums)

        def one(*values: Tensor) -> Tensor:
            given = {**known, **dict(zip(names, values, strict=True))}
            return evaluate(arrays, (d,), given, self.sizes)[0]

        return torch.vmap(one)(*own) if samples or heads else one(*own)
