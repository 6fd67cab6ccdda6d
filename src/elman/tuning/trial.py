"""One training step of a kernel on random data, apart from everything of the user's.

Touches no global random state, no user tensor, and none of the modes the user may be in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from elman.engines.base import Job, Kernel
from elman.errors import nothing_said
from elman.ir.types import shape_size

Maker = Callable[[Tensor], Tensor]

_DRAWN = 1_000_003  # numbers drawn for one tensor; a larger one repeats them, in no step with rows
_C: Any = torch._C
_top_hooks: Any = getattr(_C._autograd, "_top_saved_tensors_default_hooks", None)
_run_backward: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)


def _same(value: Any) -> Any:
    return value


@contextmanager
def apart(device: str) -> Iterator[None]:
    """No autocast, and none of the user's hooks on saved tensors (checkpointing, offloading)."""
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device, enabled=False))
        if _top_hooks is None or _top_hooks(False) is not None:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_same, _same))
        yield


def _pulled(
    roots: Sequence[Tensor], leaves: Sequence[Tensor], ds: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Gradients of the leaves, None for one that nothing reads: ``torch.autograd.grad``.

    To compare the shapes of cotangents, that one imports a computer algebra system: 0.2 s of the
    first training step. Here they fit.
    """
    if _run_backward is None:
        return torch.autograd.grad(roots, leaves, ds, allow_unused=True)
    return _run_backward(tuple(roots), tuple(ds), False, False, tuple(leaves), True, False)


@dataclass(frozen=True, eq=False)
class Trial:
    """Random arguments for one job at one T and B.

    Attributes:
        inputs, states, weights: as :meth:`Kernel.forward` takes them.
        d_output: cotangent of the output, dense.
        d_last: cotangents of the last states; None for zero.
    """

    job: Job
    inputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    d_output: Tensor
    d_last: tuple[Tensor | None, ...]

    def double(self) -> Trial:
        """The same numbers in float64."""
        return self._each(lambda value: value.double(), lambda value: value.double())

    def positive(self) -> Trial:
        """The same numbers without their signs, for formulas that are defined there alone."""
        return self._each(lambda value: value.abs(), lambda value: value)

    def samples(self, kept: Tensor) -> Trial:
        """The samples that ``kept`` [B] marks."""
        (index,) = kept.nonzero(as_tuple=True)
        return replace(
            self,
            inputs=tuple(value.index_select(1, index) for value in self.inputs),
            states=tuple(value.index_select(0, index) for value in self.states),
            d_output=self.d_output.index_select(1, index),
            d_last=tuple(d if d is None else d.index_select(0, index) for d in self.d_last),
        )

    def _each(self, change: Maker, change_d: Maker) -> Trial:
        return Trial(
            self.job,
            tuple(map(change, self.inputs)),
            tuple(map(change, self.states)),
            tuple(map(change, self.weights)),
            change_d(self.d_output),
            tuple(d if d is None else change_d(d) for d in self.d_last),
        )

    def run(self, kernel: Kernel) -> dict[str, Tensor]:
        """Forward, and backward if the job is for training; all results by name."""
        with apart(self.job.spec.device), nothing_said():
            found = self._differentiated(kernel) if kernel.differentiable else self._called(kernel)
        if self.job.spec.device == "cuda":
            torch.cuda.synchronize()
        return found

    def _named(self, output: Tensor, last: tuple[Tensor, ...]) -> dict[str, Tensor]:
        states = [leaf.name for leaf in self.job.graph.states]
        return {
            "output": output,
            **{f"last {name}": value for name, value in zip(states, last, strict=True)},
        }

    def _called(self, kernel: Kernel) -> dict[str, Tensor]:
        job = self.job
        with torch.no_grad():
            output, last, saved = kernel.forward(self.inputs, self.states, self.weights)
            found = self._named(output, last)
            if not job.spec.training:
                return found
            arguments = (self.inputs, self.states, self.weights)
            d_inputs, d_states, d_weights = kernel.backward(
                *arguments, saved, self.d_output, self.d_last, False
            )
        leaves = (*job.graph.inputs, *job.graph.states, *job.graph.weights)
        grads = (*d_inputs, *d_states, *d_weights)
        return found | self._gradients([leaf.name for leaf in leaves], grads)

    def _differentiated(self, kernel: Kernel) -> dict[str, Tensor]:
        job = self.job
        if not job.spec.training:
            with torch.no_grad():
                output, last, _ = kernel.forward(self.inputs, self.states, self.weights)
            return self._named(output, last)
        wants = self._wants()
        values: list[Tensor] = []
        leaves: dict[str, Tensor] = {}
        arguments = (*self.inputs, *self.states, *self.weights)
        for leaf, value in zip(job.graph.leaves, arguments, strict=True):
            own = value.detach()
            if leaf.name in wants:
                leaves[leaf.name] = own.requires_grad_()
            values.append(own)
        first = len(self.inputs)
        second = first + len(self.states)
        with torch.enable_grad():
            output, last, _ = kernel.forward(values[:first], values[first:second], values[second:])
            found = self._named(output.detach(), tuple(value.detach() for value in last))
            pairs = [
                (value, d)
                for value, d in zip((output, *last), (self.d_output, *self.d_last), strict=True)
                if value.requires_grad and d is not None
            ]
            if not pairs:
                return found
            roots, ds = zip(*pairs, strict=True)
            grads = _pulled(roots, list(leaves.values()), ds)
        return found | self._gradients(list(leaves), grads)

    def _wants(self) -> frozenset[str]:
        states = frozenset(leaf.name for leaf in self.job.graph.states)
        return self.job.spec.wants | states

    def _gradients(self, names: list[str], grads: Any) -> dict[str, Tensor]:
        wants = self._wants()
        return {
            f"gradient of {name}": grad
            for name, grad in zip(names, grads, strict=True)
            if grad is not None and name in wants
        }


def make_trial(job: Job, steps: int, batch: int, seed: int = 0, ends: bool = False) -> Trial:
    """Draw random arguments: x ~ N(0, 1), states ~ U(-1/2, 1/2), weights ~ U(-1/√H, 1/√H).

    Args:
        job: what is tried.
        steps: T.
        batch: B.
        seed: of generators of its own.
        ends: whether last states have cotangents.
    """
    sizes = job.spec.sizes
    device = torch.device(job.spec.device)
    dtype: torch.dtype = getattr(torch, job.spec.dtype)
    source = np.random.default_rng(seed)  # torch's own would refuse inside a vmap

    def drawn(shape: tuple[int, ...], draw: Callable[[int], Any], size: float = 1.0) -> Tensor:
        count = math.prod(shape)
        few = torch.from_numpy(draw(min(count, _DRAWN)).astype(np.float32)).mul_(size)
        whole = few if count <= _DRAWN else few.repeat(-(-count // _DRAWN))[:count]
        return whole.view(shape).to(device, dtype)

    def uniform(shape: tuple[int, ...], bound: float) -> Tensor:
        return drawn(shape, lambda count: source.uniform(-1, 1, count), bound)

    def normal(shape: tuple[int, ...]) -> Tensor:
        return drawn(shape, source.standard_normal)

    graph = job.graph
    hidden = max(1, *shape_size(graph.states[0].shape, sizes)) if graph.states[0].shape else 1
    with torch.no_grad():
        states = [(batch, *shape_size(v.shape, sizes)) for v in graph.states]
        return Trial(
            job,
            tuple(normal((steps, batch, *shape_size(v.shape, sizes))) for v in graph.inputs),
            tuple(uniform(shape, 0.5) for shape in states),
            tuple(uniform(shape_size(v.shape, sizes), hidden**-0.5) for v in graph.weights),
            normal((steps, batch, *shape_size(graph.output.shape, sizes))),
            tuple(normal(shape) if ends else None for shape in states),
        )
