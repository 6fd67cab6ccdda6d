"""A step with its sizes, and the kernels of what is derived from it: its tangent, its gradients by
sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from elman import compiler
from elman.autodiff.tangent import tangent
from elman.engines.base import Job, Kernel
from elman.engines.call import Call, Cotangents, Form, Gradients, Result
from elman.engines.checkpoint import torch_gradients
from elman.engines.packed import Packed, for_layout
from elman.engines.reference.engine import ReferenceKernel
from elman.frontend.cell import Cell
from elman.ir.graph import Graph
from elman.ir.pair import Pair
from elman.nn.autograd.per_sample import PerSampleKernel
from elman.plan.spec import Spec
from elman.torch_internals import is_view
from elman.tuning.kernels import first_engine
from elman.tuning.request import Rule
from elman.tuning.verification import verified

COMPILED = 1  # tangents of tangents are large: compiling them takes minutes, and much memory


class TorchOps(Kernel):
    """A step by torch ops, with a backward that runs them again.

    Args:
        graph, dims: as of the reference.
        wants: which arguments get gradients.
    """

    engine = "reference"

    def __init__(self, graph: Graph, dims: dict[str, int], wants: tuple[bool, ...]) -> None:
        self._reference, self._wants = ReferenceKernel(graph, dims), wants

    def forward(self, call: Call) -> Result:
        """See :meth:`Kernel.forward`."""
        with torch.no_grad():
            return self._reference.forward(call)

    def backward(
        self, call: Call, saved: Sequence[Tensor], cotangents: Cotangents, keep: bool
    ) -> Gradients:
        """See :meth:`Kernel.backward`."""
        return torch_gradients(self._reference, call, self._wants, cotangents)


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
        self._per_sample: dict[Any, PerSampleKernel] = {}
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
            self._engines[key] = first_engine(
                self.job(like, frozenset(), True), lambda engine: engine.fuses
            )
        return self._engines[key]

    def kernel(self, like: Tensor, wants: tuple[bool, ...]) -> Kernel:
        """A kernel with gradients of some arguments; for none of them, without a backward."""
        training = any(wants)
        names = self.wanted(wants)
        key = (like.dtype, like.device.type, names if self.order <= COMPILED else wants, training)
        kernel = self._kernels.get(key)
        if kernel is None:
            engine = self.engine(like)
            assert engine is not None, "asked for before"
            if self.order > COMPILED:
                kernel = TorchOps(self.graph, dict(self.dims), wants)
            else:
                kernel = verified(self.job(like, names, training), engine)
            self._kernels[key] = kernel
        return kernel

    def wanted(self, wants: Sequence[bool]) -> frozenset[str]:
        """Names of the inputs and weights among some arguments."""
        first, second = self.counts
        middle = range(first, first + second)
        return frozenset(name for k, name in enumerate(self.names) if wants[k] and k not in middle)

    def per_sample(self, like: Tensor, wants: tuple[bool, ...]) -> PerSampleKernel:
        """What gives the gradients of the weights for every sample of its own."""
        names = self.wanted(wants)
        key = (like.dtype, like.device.type, names)
        kernel = self._per_sample.get(key)
        if kernel is None:
            engine = self.engine(like)
            assert engine is not None, "asked for before"
            kernel = PerSampleKernel(self.job(like, names, True), engine)
            self._per_sample[key] = kernel
        return kernel

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


class Kept:
    """What a forward kept for its backward, as long as both see the same arguments.

    Functions of torch hand tensors of a forward on as outputs; these are read by the kernel that
    made them alone, so they stay here.
    """

    def __init__(self) -> None:
        self._of: tuple[Any, ...] = ()
        self._kernel: Kernel | None = None
        self._saved: tuple[Tensor, ...] = ()
        self._parts: dict[int, Kept] = {}

    def part(self, index: int) -> Kept:
        """The same for one slice of the arguments."""
        return self._parts.setdefault(index, Kept())

    def put(self, of: tuple[Any, ...], kernel: Kernel, saved: tuple[Tensor, ...]) -> None:
        """Remember what a kernel saved in a call."""
        self._of, self._kernel, self._saved = of, kernel, saved

    def get(self, of: tuple[Any, ...]) -> tuple[Kernel, tuple[Tensor, ...]] | None:
        """The kernel and what it saved, if it was for such a call."""
        return (self._kernel, self._saved) if self._kernel and self._of == of else None


@dataclass(frozen=True, eq=False)
class Pass:
    """A forward over all steps that any transform goes through, without its tensors.

    Attributes:
        of: the step.
        packed: how packed sequences lie.
        wants: for each argument, whether a gradient will be asked for.
        sampled: whether those of the weights may be asked for by sample, once there are samples.
        by_sample: whether they are.
        kept: what the backward needs.
    """

    of: Derived
    packed: Packed | None
    wants: tuple[bool, ...]
    sampled: bool = False
    by_sample: bool = False
    kept: Kept = field(default_factory=Kept)

    def part(self, index: int) -> Pass:
        """The same for one slice of the arguments."""
        return replace(self, by_sample=False, kept=self.kept.part(index))

    def call(self, tensors: Sequence[Tensor]) -> Call:
        """The call of such tensors."""
        return Form(*self.of.counts, self.packed).call(tensors)

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run all steps on plain tensors; the output and the last states."""
        kernel, (output, last, saved) = self._forward(tensors)
        if any(self.wants):
            self.kept.put(self._place(tensors), kernel, saved)
        # what is kept shares memory with the output, which the caller may write to
        return (output.clone() if is_view(output) else output, *last)

    def saved(self, tensors: Sequence[Tensor]) -> tuple[Kernel, tuple[Tensor, ...]]:
        """A kernel for the backward of plain tensors, and what its forward saved."""
        saved_call = self.kept.get(self._place(tensors))
        if saved_call is None:
            kernel, result = self._forward(tensors)
            saved_call = kernel, result.saved
        return saved_call

    def _forward(self, tensors: Sequence[Tensor]) -> tuple[Kernel, Result]:
        if self.by_sample:
            kernel: Kernel = self.of.per_sample(tensors[0], self.wants)
        else:
            kernel = for_layout(self.of.kernel(tensors[0], self.wants), self.packed)
        return kernel, kernel.forward(self.call(tensors))

    def _place(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        shapes = tuple(tensor.shape for tensor in tensors)
        return self.wants, self.by_sample, shapes
