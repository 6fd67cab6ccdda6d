"""A step with its sizes, and the kernels of its tangent and of its gradients by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman import compiler
from elman.autodiff.tangent import tangent
from elman.checks import MOST
from elman.engines.base import Job, Kernel
from elman.engines.call import Call, Cotangents, Gradients, Result
from elman.engines.checkpoint import Checkpointed
from elman.engines.gate_blocks import GateBlockViews
from elman.engines.reference.engine import ReferenceKernel
from elman.engines.weights import WeightRate
from elman.frontend.cell import Cell
from elman.ir.graph import Graph, Node, node
from elman.ir.pair import Pair, Sum, loop_invariant
from elman.ir.types import shape_size
from elman.plan.spec import Spec
from elman.tuning.kernels import first_engine, kernel_of
from elman.tuning.request import Rule
from elman.tuning.verification import compile_verified, verify

COMPILED = 1  # tangents of tangents are large: compiling them takes minutes, and much memory


class DerivedStep:
    """A step, its adjoint and its sizes, with caches of kernels and tangents.

    Attributes:
        graph: the step as written.
        counts: numbers of its inputs and states.
        names: names of all its leaves, in declared order.
    """

    def __init__(
        self, name: str, graph: Graph, dims: tuple[tuple[str, int], ...], order: int = 0
    ) -> None:
        self.name, self.graph, self.dims, self.order = name, graph, dims, order
        self.counts = (len(graph.inputs), len(graph.states))
        self.names = tuple(leaf.name for leaf in graph.leaves)
        self._pair: Pair | None = None
        self._engines: dict[tuple[torch.dtype, str], str | None] = {}
        self._kernels: dict[Any, Kernel] = {}
        self._tangents: dict[tuple[bool, ...], DerivedStep] = {}

    @property
    def pair(self) -> Pair:
        """The canonical step and its adjoint."""
        if self._pair is None:
            self._pair = compiler.build_pair(self.graph)
        return self._pair

    def job(self, like: Tensor, wants: frozenset[str], training: bool) -> Job:
        """Build the job for tensors of the dtype and device of ``like``."""
        dtype = str(like.dtype).removeprefix("torch.")
        spec = Spec(self.dims, dtype, like.device.type, wants, training)
        return Job(self.name, self.graph, self.pair, spec)

    def engine(self, like: Tensor) -> str | None:
        """The engine for the step's derivatives and tensors like ``like``; None if there is
        none."""
        key = (like.dtype, like.device.type)
        if key not in self._engines:
            job = self.job(like, frozenset(), True)
            self._engines[key] = first_engine(job, lambda engine: engine.fuses)
        return self._engines[key]

    def kernel(self, like: Tensor, wants: tuple[bool, ...]) -> Kernel:
        """A kernel with gradients of some arguments; without a backward if there are none."""
        return self._kernel(like, wants, False)

    def per_sample(self, like: Tensor, wants: tuple[bool, ...]) -> PerSampleKernel:
        """Return a kernel that computes the gradients of the weights for each sample."""
        return self._kernel(like, wants, True)

    def _kernel(self, like: Tensor, wants: tuple[bool, ...], by_sample: bool) -> Any:
        first, second = self.counts
        names = frozenset(
            name
            for k, (name, is_wanted) in enumerate(zip(self.names, wants, strict=True))
            if is_wanted and not first <= k < first + second
        )
        compiled, training = self.order <= COMPILED, by_sample or any(wants)
        key = (like.dtype, like.device.type, names if compiled else wants, training, by_sample)
        if key not in self._kernels:
            engine, job = self.engine(like), self.job(like, names, training)
            assert engine is not None, "Differentiable asked for an engine"
            if by_sample:
                self._kernels[key] = PerSampleKernel(job, engine)
            elif compiled:
                self._kernels[key] = compile_verified(job, engine)
            else:
                reference = ReferenceKernel(self.graph, dict(self.dims))
                self._kernels[key] = Checkpointed(reference, MOST, wants)  # all steps at once
        return self._kernels[key]

    def tangent(self, moving: tuple[bool, ...]) -> DerivedStep:
        """The step of the tangent, if some arguments have one; all states have one."""
        derivative = self._tangents.get(moving)
        if derivative is None:
            first, second = self.counts
            graph = tangent(
                self.graph,
                frozenset(self.names[k] for k in range(first) if moving[k]),
                frozenset(
                    self.names[k] for k in range(first + second, len(self.names)) if moving[k]
                ),
            )
            derivative = self._tangents[moving] = DerivedStep(
                f"{self.name}_dot", graph, self.dims, self.order + 1
            )
        return derivative


@lru_cache(maxsize=256)
def derive(cell: Cell, dims: tuple[tuple[str, int], ...], rules: tuple[Rule, ...]) -> DerivedStep:
    """Return the derived step of a cell and sizes, shared by all layers that have them."""
    return DerivedStep(cell.name, compiler.graph_of(cell, rules), dims)


class PerSampleKernel(Kernel):
    """A cell whose weights get a gradient per sample.

    A weight's gradient is Σ left ⊗ right over all rows of T·B. The inner kernel returns left and
    right of every row, as gradients of inputs that the cell does not read; they are then summed for
    each sample. :meth:`backward` treats the whole batch as one sample.

    Args:
        job: the cell; ``spec.wants`` names the inputs and weights that get gradients.
        engine: name of the engine that runs it.
    """

    def __init__(self, job: Job, engine: str) -> None:
        self.job = job
        step, wants = job.pair.step, job.spec.wants
        self._weights = WeightRate(job)
        targets = self._weights.targets
        self._sums: list[Sum] = [term for term in job.pair.sums if term.target in targets]
        self._factor_names: dict[Node, str] = {}
        leaf_names = {leaf.name for leaf in job.graph.leaves}
        for term in self._sums:
            for value in (term.left, term.right):
                if (
                    value is not None
                    and value not in step.inputs
                    and value not in self._factor_names
                ):
                    name = f"row{len(self._factor_names)}"
                    while name in leaf_names:
                        name += "_"
                    self._factor_names[value] = name
        self._count = len(job.graph.inputs)
        self._sizes = dict(job.spec.dims)
        self._shapes = [shape_size(value.shape, self._sizes) for value in self._factor_names]
        self._views = GateBlockViews(job.graph.inputs, step.inputs, self._sizes)
        names = frozenset(leaf.name for leaf in job.graph.inputs) & wants
        spec = replace(
            job.spec, wants=names | frozenset(self._factor_names.values()), training=True
        )
        self.kernel = kernel_of(self._factor_job(spec), engine)
        self.engine = self.kernel.engine
        verify(job, self, f"{engine} sample by sample")

    def fingerprint(self) -> str | None:
        """The fingerprint of the program that returns the factors."""
        return self.kernel.fingerprint()

    def _factor_job(self, spec: Any) -> Job:
        """The job that returns the factors, as gradients of further inputs."""
        pair, graph = self.job.pair, self.job.graph
        pairs = [(name, value.shape) for value, name in self._factor_names.items()]
        leaves = [node("input", (), (name, 0), shape) for name, shape in pairs]
        wider_pair = Pair(
            replace(pair.step, inputs=(*pair.step.inputs, *leaves)),
            pair.d_outputs,
            pair.d_next,
            pair.d_states,
            (*pair.d_inputs, *map(_no_leaf, self._factor_names)),
            (),
            (),
            (None,) * len(pair.step.weights),
        )
        declared = [node("input", (), (name,), shape) for name, shape in pairs]
        wider = replace(graph, inputs=(*graph.inputs, *declared))
        return Job(f"{self.job.name}_rows", wider, wider_pair, spec)

    def _wider(self, call: Call) -> Call:
        """The call of the inner kernel."""
        first = call.inputs[0]
        lead = first.shape[:2]
        zeros = (first.new_zeros(shape).expand(*lead, *shape) for shape in self._shapes)
        return call._replace(inputs=(*call.inputs, *zeros))

    def forward(self, call: Call) -> Result:
        return self.kernel.forward(self._wider(call))

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        d_inputs, d_states, d_weights = self.by_sample(call, saved, cotangents, 1)
        return Gradients(d_inputs, d_states, tuple(d if d is None else d[0] for d in d_weights))

    def by_sample(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, samples: int
    ) -> Gradients:
        """:meth:`backward` with gradients of the weights [samples, ...].

        Args:
            call, saved, cotangents: see :meth:`backward`.
            samples: number of samples, into which the batch is divided evenly.
        """
        d_all, d_states, _ = self.kernel.backward(self._wider(call), saved, cotangents, True)
        graph, step = self.job.graph, self.job.pair.step
        by_name = {leaf.name: x for leaf, x in zip(graph.inputs, call.inputs, strict=True)}
        factors = self._views.gate_blocks(step.inputs, by_name)
        d_rows = d_all[self._count :]
        factors.update(
            (v, d) for v, d in zip(self._factor_names, d_rows, strict=True) if d is not None
        )
        sums = self._totals(factors, samples)
        d_weights = self._weights.gradients(sums, call.weights, samples)
        return Gradients(d_all[: self._count], d_states, tuple(d_weights))

    def _totals(self, factors: dict[Node, Tensor], samples: int) -> dict[Node, Tensor]:
        """Sum the gradients of each sample, by target: [samples, ...]."""
        totals: dict[Node, Tensor] = {}

        def add(target: Node, part: Tensor) -> None:
            totals[target] = part if target not in totals else totals[target] + part

        by_right: dict[Node, list[Sum]] = {}
        left_sums: dict[Node, Tensor] = {}
        for term in self._sums:
            if term.right is not None:
                by_right.setdefault(term.right, []).append(term)
                continue
            if term.left not in left_sums:
                left_sums[term.left] = factors[term.left].unflatten(1, (samples, -1)).sum((0, 2))
            add(term.target, left_sums[term.left])
        for right, terms in by_right.items():
            lefts = list(dict.fromkeys(term.left for term in terms))
            left_rows = _by_sample(torch.cat([factors[factor] for factor in lefts], -1), samples)
            products = left_rows.transpose(1, 2) @ _by_sample(factors[right], samples)
            widths = [factors[factor].shape[-1] for factor in lefts]
            split = dict(zip(lefts, products.split(widths, 1), strict=True))
            for term in terms:
                add(term.target, split[term.left])
        return totals


def _by_sample(rows: Tensor, samples: int) -> Tensor:
    """Reshape rows [T, samples · B, n] to [samples, T · B, n]."""
    return rows.unflatten(1, (samples, -1)).transpose(0, 1).flatten(1, 2)


def _no_leaf(value: Node) -> Node:
    """Return a value that a kernel can compute: a copy, if it is a leaf."""
    if value.args and not loop_invariant(value):
        return value
    return node("lin", (value,), ((1.0,), 0.0), value.shape)
