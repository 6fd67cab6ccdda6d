"""One training step of a kernel on random data, apart from everything of the user's.

Touches no global random state, no user tensor, and none of the modes the user may be in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from elman.engines.base import Job, Kernel
from elman.ir.types import shape_size

_C: Any = torch._C
_top_hooks: Any = getattr(_C._autograd, "_top_saved_tensors_default_hooks", None)


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


@dataclass(frozen=True, eq=False)
class Trial:
    """Random arguments for one job at one T and B.

    Attributes:
        inputs, states, weights: as :meth:`Kernel.forward` takes them.
        d_output: cotangent of the output, dense.
    """

    job: Job
    inputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    d_output: Tensor

    def double(self) -> Trial:
        """The same numbers in float64."""
        return Trial(
            self.job,
            tuple(value.double() for value in self.inputs),
            tuple(value.double() for value in self.states),
            tuple(value.double() for value in self.weights),
            self.d_output.double(),
        )

    def run(self, kernel: Kernel) -> dict[str, Tensor]:
        """Forward, and backward if the job is for training; all results by name."""
        with apart(self.job.spec.device):
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
            none = (None,) * len(self.states)
            d_inputs, d_states, d_weights = kernel.backward(
                self.inputs, self.states, self.weights, saved, self.d_output, none, False
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
            if not output.requires_grad:
                return found
            grads = torch.autograd.grad(
                output, list(leaves.values()), self.d_output, allow_unused=True
            )
        return found | self._gradients(list(leaves), grads)

    def _wants(self) -> frozenset[str]:
        states = frozenset(leaf.name for leaf in self.job.graph.states)
        return self.job.spec.wants or states

    def _gradients(self, names: list[str], grads: Any) -> dict[str, Tensor]:
        wants = self._wants()
        return {
            f"gradient of {name}": grad
            for name, grad in zip(names, grads, strict=True)
            if grad is not None and name in wants
        }


def make_trial(job: Job, steps: int, batch: int, seed: int = 0) -> Trial:
    """Draw random arguments: x ~ N(0, 1), states ~ U(-1/2, 1/2), weights ~ U(-1/√H, 1/√H).

    Args:
        job: what is tried.
        steps: T.
        batch: B.
        seed: of a generator of its own.
    """
    sizes = job.spec.sizes
    device = torch.device(job.spec.device)
    options: dict[str, Any] = {"dtype": getattr(torch, job.spec.dtype), "device": device}
    source = torch.Generator(device=device).manual_seed(seed)

    def uniform(shape: tuple[int, ...], bound: float) -> Tensor:
        return (torch.rand(shape, generator=source, **options) * 2 - 1) * bound

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=source, **options)

    graph = job.graph
    hidden = max(1, *shape_size(graph.states[0].shape, sizes)) if graph.states[0].shape else 1
    with torch.no_grad():
        return Trial(
            job,
            tuple(normal((steps, batch, *shape_size(v.shape, sizes))) for v in graph.inputs),
            tuple(uniform((batch, *shape_size(v.shape, sizes)), 0.5) for v in graph.states),
            tuple(uniform(shape_size(v.shape, sizes), hidden**-0.5) for v in graph.weights),
            normal((steps, batch, *shape_size(graph.output.shape, sizes))),
        )
