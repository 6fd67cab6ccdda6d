"""A step with its sizes, and the kernels of what is derived from it: its tangent, its gradients by
sample."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman import compiler
from elman.autodiff.tangent import tangent
from elman.checks import MOST
from elman.engines.base import Job, Kernel
from elman.engines.checkpoint import Checkpointed
from elman.engines.reference.engine import ReferenceKernel
from elman.frontend.cell import Cell
from elman.ir.graph import Graph
from elman.ir.pair import Pair
from elman.nn.autograd.per_sample import PerSampleKernel
from elman.plan.spec import Spec
from elman.tuning.kernels import first_engine
from elman.tuning.request import Rule
from elman.tuning.verification import compile_verified

COMPILED = 1  # tangents of tangents are large: compiling them takes minutes, and much memory


class Derived:
    """A step, its adjoint and its sizes; kernels and further derivations are made once.

    Attributes:
        graph: the step as written.
        counts: how many inputs and states it has.
        names: of all its leaves, in declared order.
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
        self._tangents: dict[tuple[bool, ...], Derived] = {}

    @property
    def pair(self) -> Pair:
        """The canonical step and its adjoint."""
        if self._pair is None:
            self._pair = compiler.paired(self.graph)
        return self._pair

    def job(self, like: Tensor, wants: frozenset[str], training: bool) -> Job:
        """What is to be compiled for tensors like one."""
        dtype = str(like.dtype).removeprefix("torch.")
        spec = Spec(self.dims, dtype, like.device.type, wants, training)
        return Job(self.name, self.graph, self.pair, spec)

    def engine(self, like: Tensor) -> str | None:
        """The engine that runs whatever is derived from a cell, for tensors like one; or None."""
        key = (like.dtype, like.device.type)
        if key not in self._engines:
            job = self.job(like, frozenset(), True)
            self._engines[key] = first_engine(job, lambda engine: engine.fuses)
        return self._engines[key]

    def kernel(self, like: Tensor, wants: tuple[bool, ...]) -> Kernel:
        """A kernel with gradients of some arguments; for none of them, without a backward."""
        return self._kernel(like, wants, False)

    def per_sample(self, like: Tensor, wants: tuple[bool, ...]) -> PerSampleKernel:
        """What gives the gradients of the weights for every sample of its own."""
        return self._kernel(like, wants, True)

    def _kernel(self, like: Tensor, wants: tuple[bool, ...], by_sample: bool) -> Any:
        first, second = self.counts
        names = frozenset(
            name
            for k, (name, want) in enumerate(zip(self.names, wants, strict=True))
            if want and not first <= k < first + second
        )
        compiled, training = self.order <= COMPILED, by_sample or any(wants)
        key = (like.dtype, like.device.type, names if compiled else wants, training, by_sample)
        if key not in self._kernels:
            engine, job = self.engine(like), self.job(like, names, training)
            assert engine is not None, "asked for before"
            if by_sample:
                self._kernels[key] = PerSampleKernel(job, engine)
            elif compiled:
                self._kernels[key] = compile_verified(job, engine)
            else:
                reference = ReferenceKernel(self.graph, dict(self.dims))
                self._kernels[key] = Checkpointed(reference, MOST, wants)  # all steps at once
        return self._kernels[key]

    def tangent(self, moving: tuple[bool, ...]) -> Derived:
        """The step that moves with this one if some arguments do; all states do."""
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
            derivative = self._tangents[moving] = Derived(
                f"{self.name}_dot", graph, self.dims, self.order + 1
            )
        return derivative


@lru_cache(maxsize=256)
def derived(cell: Cell, dims: tuple[tuple[str, int], ...], rules: tuple[Rule, ...]) -> Derived:
    """What is derived from a cell of some sizes, shared by all layers that have them."""
    return Derived(cell.name, compiler.graph_of(cell, rules), dims)
