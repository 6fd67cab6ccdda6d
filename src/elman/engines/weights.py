"""What happens once per call, by torch: values of weight rate, and gradients from finished sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from elman.engines.arrays import Arrays
from elman.engines.atoms import Places
from elman.engines.base import Job
from elman.ir.evaluate import evaluate
from elman.ir.graph import Node, walk
from elman.ir.ops import OPS

Values = dict[Node, Tensor]


class WeightRate:
    """The weights of a job, and what depends on them alone."""

    def __init__(self, job: Job) -> None:
        self.graph, self.pair, self.wants = job.graph, job.pair, job.spec.wants
        self.sizes = dict(job.spec.dims)
        step = job.pair.step
        self._places = Places(job.graph.weights, step.weights, self.sizes)
        self.wanted = {
            leaf: d
            for leaf, d in zip(step.weights, job.pair.d_weights, strict=True)
            if d is not None and leaf.name in job.spec.wants
        }
        read = set(walk(self.wanted.values()))
        self._pointwise: dict[tuple[Node, ...], bool] = {}
        self.targets = {target: d for target, d in job.pair.d_sealed if d in read}

    def values(
        self, weights: Sequence[Tensor], roots: Sequence[Node] = (), *, heads: bool = False
    ) -> Values:
        """Blocks of the weights, and what is computed from them; of each of several ``heads``, if
        weights are [heads, …]."""
        if heads and not self._leading(tuple(roots)):
            leaves: list[Node] = []

            def of_one(*own: Tensor) -> tuple[Tensor, ...]:
                found = self.values(own, roots)
                leaves[:] = found
                return tuple(found.values())

            made: tuple[Tensor, ...] = torch.vmap(of_one)(*weights)
            return dict(zip(leaves, made, strict=True))
        named = {leaf.name: w for leaf, w in zip(self.graph.weights, weights, strict=True)}
        known = self._places.atoms(self.pair.step.weights, named)
        if roots:
            evaluate(Arrays(weights[0].dtype, weights[0].device), tuple(roots), known, self.sizes)
        return known

    def _leading(self, roots: tuple[Node, ...]) -> bool:
        """Whether leading axes go through all that is computed for some roots."""
        if roots not in self._pointwise:
            leaves = set(self.pair.step.weights)
            made = [value for value in walk(roots) if value not in leaves]
            self._pointwise[roots] = all(OPS[value.op].kind == "pointwise" for value in made)
        return self._pointwise[roots]

    def gradients(
        self,
        totals: Mapping[Node, Tensor],
        weights: Sequence[Tensor],
        samples: int = 0,
        *,
        heads: bool = False,
        whole: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the wanted weights from the sums of what they were sealed into.

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
                found.append(parts[0])
                continue
            zero = weight.new_zeros(())
            each = [zero if part is None else part for part in parts]
            found.append(self._places.joined(blocks, each, weight.new_empty(shape)))
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
