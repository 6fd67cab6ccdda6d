"""Gradients of the weights sample by sample: the rows of which they are sums, from one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from elman.engines.atoms import Places
from elman.engines.base import Job, Kernel
from elman.engines.weights import WeightRate
from elman.ir.graph import Graph, Node, node
from elman.ir.pair import Pair, Step, Sum, sealed
from elman.ir.types import shape_size
from elman.ir.verify import verified_pair
from elman.tuning.kernels import kernel_of
from elman.tuning.verification import verify

Gradients = tuple[Tensor | None, ...]
Saved = tuple[Tensor, ...]


class Rows:
    """The forward and backward of a cell whose weights get a gradient per sample.

    A weight's gradient is Σ left ⊗ right over all rows of T·B. The kernel hands out left and right
    of every row, as gradients of inputs that the cell does not read; sums follow by sample.

    Args:
        job: the cell; ``spec.wants`` names the inputs and weights that get gradients.
        engine: whose kernel runs it.
    """

    def __init__(self, job: Job, engine: str) -> None:
        self.job = job
        step, wants = job.pair.step, job.spec.wants
        self._weights = WeightRate(job)
        targets = self._weights.targets
        self._sums: list[Sum] = [term for term in job.pair.sums if term.target in targets]
        self._handed: dict[Node, int] = {}
        taken = {leaf.name for leaf in job.graph.leaves}
        fresh: list[str] = []
        for term in self._sums:
            for value in (term.left, term.right):
                if value is not None and value not in step.inputs and value not in self._handed:
                    self._handed[value] = len(self._handed)
                    name = f"row{len(fresh)}"
                    while name in taken:
                        name += "_"
                    fresh.append(name)
        self._count = len(job.graph.inputs)
        self._sizes = dict(job.spec.dims)
        self._shapes = [shape_size(value.shape, self._sizes) for value in self._handed]
        self._places = Places(job.graph.inputs, step.inputs, self._sizes)
        names = frozenset(leaf.name for leaf in job.graph.inputs) & wants
        spec = replace(job.spec, wants=names | frozenset(fresh), training=True)
        self.kernel = kernel_of(self._handing(fresh, spec), engine)
        verify(job, _Summed(self), f"{engine} sample by sample")

    def _handing(self, names: Sequence[str], spec: Any) -> Job:
        """The job whose gradients of further inputs are what is to be handed out."""
        pair, graph = self.job.pair, self.job.graph
        shapes = [value.shape for value in self._handed]
        leaves = [node("input", (), (n, 0), s) for n, s in zip(names, shapes, strict=True)]
        step = pair.step
        more = Step(
            (*step.inputs, *leaves), step.states, step.weights, step.next_states, step.outputs
        )
        made = Pair(
            more,
            pair.d_outputs,
            pair.d_next,
            pair.d_states,
            (*pair.d_inputs, *(_no_leaf(value) for value in self._handed)),
            (),
            (),
            (None,) * len(step.weights),
        )
        declared = [node("input", (), (n,), s) for n, s in zip(names, shapes, strict=True)]
        wider = Graph(
            (*graph.inputs, *declared), graph.states, graph.weights, graph.next_states, graph.output
        )
        return Job(f"{self.job.name}_rows", wider, verified_pair(made), spec)

    def _inputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        first = inputs[0]
        lead = first.shape[:2]
        return [
            *inputs,
            *(first.new_zeros(shape).expand(*lead, *shape) for shape in self._shapes),
        ]

    def forward(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, Saved, Saved]:
        """As :meth:`Kernel.forward`."""
        return self.kernel.forward(self._inputs(inputs), states, weights)

    def backward(
        self,
        inputs: Sequence[Tensor],
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        saved: Sequence[Tensor],
        d_output: Tensor | None,
        d_last: Sequence[Tensor | None],
        samples: int,
    ) -> tuple[Gradients, Gradients, Gradients]:
        """As :meth:`Kernel.backward`; those of the weights are [samples, ...].

        Args:
            inputs, states, weights, saved, d_output, d_last: as there.
            samples: of B rows each, in which the batch is samples · B.
        """
        d_all, d_states, _ = self.kernel.backward(
            self._inputs(inputs), states, weights, saved, d_output, d_last, True
        )
        graph, step = self.job.graph, self.job.pair.step
        named = {leaf.name: value for leaf, value in zip(graph.inputs, inputs, strict=True)}
        rows = self._places.atoms(step.inputs, named)
        handed = d_all[self._count :]
        rows.update((v, d) for v, d in zip(self._handed, handed, strict=True) if d is not None)
        found = self._weights.gradients(self._totals(rows, samples), weights, samples)
        return d_all[: self._count], d_states, found

    def _totals(self, rows: dict[Node, Tensor], samples: int) -> dict[Node, Tensor]:
        """The sums of each sample, by what they are gradients of: [samples, ...]."""
        found: dict[Node, Tensor] = {}

        def add(target: Node, part: Tensor) -> None:
            found[target] = part if target not in found else found[target] + part

        by_right: dict[Node, list[Sum]] = {}
        by_left: dict[Node, Tensor] = {}
        for term in self._sums:
            if term.right is not None:
                by_right.setdefault(term.right, []).append(term)
                continue
            if term.left not in by_left:
                by_left[term.left] = rows[term.left].unflatten(1, (samples, -1)).sum((0, 2))
            add(term.target, by_left[term.left])
        for right, terms in by_right.items():
            lefts = list(dict.fromkeys(term.left for term in terms))
            whole = _by_sample(torch.cat([rows[left] for left in lefts], -1), samples)
            made = whole.transpose(1, 2) @ _by_sample(rows[right], samples)
            widths = [rows[left].shape[-1] for left in lefts]
            split = dict(zip(lefts, made.split(widths, 1), strict=True))
            for term in terms:
                add(term.target, split[term.left])
        return found


class _Summed(Kernel):
    """Rows of one sample that is the whole batch: a kernel of the cell itself, to be verified."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self.engine = rows, rows.kernel.engine

    def fingerprint(self) -> str | None:
        """The program's that hands out the rows."""
        return self._rows.kernel.fingerprint()

    def forward(
        self, inputs: Sequence[Tensor], states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, Saved, Saved]:
        """See :meth:`Kernel.forward`."""
        return self._rows.forward(inputs, states, weights)

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
        d_inputs, d_states, d_weights = self._rows.backward(
            inputs, states, weights, saved, d_output, d_last, 1
        )
        return d_inputs, d_states, tuple(d if d is None else d[0] for d in d_weights)


def _by_sample(rows: Tensor, samples: int) -> Tensor:
    """Rows [T, samples · B, n] as [samples, T · B, n]."""
    return rows.unflatten(1, (samples, -1)).transpose(0, 1).flatten(1, 2)


def _no_leaf(value: Node) -> Node:
    """A value that a kernel can compute: a leaf's own is a copy of it."""
    if value.args and not sealed(value):
        return value
    return node("lin", (value,), ((1.0,), 0.0), value.shape)
