"""A training step of a kernel on random data, isolated from the user's tensors and modes, and the
time of its phases.

Touches no global random state, no user tensor, and none of the modes the user may be in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from elman.engines import registry
from elman.engines.base import WAITING, Job, Kernel
from elman.engines.call import Call, Cotangents, Result
from elman.engines.vjp import leaves_of, vjp
from elman.errors import quiet_warnings
from elman.ir.types import shape_size
from elman.torch_internals import is_view, saved_tensors_are_hooked

Maker = Callable[[Tensor], Tensor]

_DRAWS = 1_000_003  # numbers drawn for one tensor; a prime, so that repeats fall elsewhere in rows


def flops(job: Job) -> float:
    """Rough work of one step of one sample (FLOP): a product forward, two backward, of two
    operations per weight."""
    sizes = [shape_size(weight.shape, job.spec.sizes) for weight in job.graph.weights]
    return 6.0 * sum(rows * columns for rows, columns in (s for s in sizes if len(s) == 2)) + 1.0


def _identity(value: Any) -> Any:
    return value


@contextmanager
def isolate(device: str) -> Iterator[None]:
    """Disable autocast and the user's hooks on saved tensors (checkpointing, offloading)."""
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device, enabled=False))
        if saved_tensors_are_hooked():
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_identity, _identity))
        yield


@dataclass(frozen=True, eq=False)
class Trial:
    """Random arguments for one job at one T and B.

    Attributes:
        job: the job.
        call: a dense call.
        cotangents: of the output, dense, and of the last states.
    """

    job: Job
    call: Call
    cotangents: Cotangents

    def double(self) -> Trial:
        """Return the trial with the same numbers in float64."""
        return self._map(lambda value: value.double(), lambda value: value.double())

    def positive(self) -> Trial:
        """Return the trial with absolute values, for formulas defined on positive numbers alone."""
        return self._map(lambda value: value.abs(), lambda value: value)

    def samples(self, mask: Tensor) -> Trial:
        """The samples that ``mask`` [B] marks."""
        (index,) = mask.nonzero(as_tuple=True)
        inputs, states, weights, *_ = self.call
        d_output, d_last = self.cotangents
        assert d_output is not None, "made by make_trial"
        return Trial(
            self.job,
            Call(
                tuple(value.index_select(1, index) for value in inputs),
                tuple(value.index_select(0, index) for value in states),
                weights,
            ),
            Cotangents(
                d_output.index_select(1, index),
                tuple(d if d is None else d.index_select(0, index) for d in d_last),
            ),
        )

    def _map(self, change: Maker, change_d: Maker) -> Trial:
        call = self.call.with_tensors(tuple(map(change, self.call.tensors)))
        d_output, *d_last = (
            d if d is None else change_d(d) for d in (self.cotangents.output, *self.cotangents.last)
        )
        return Trial(self.job, call, Cotangents(d_output, tuple(d_last)))

    def run(self, kernel: Kernel, whole: bool = False) -> dict[str, Tensor]:
        """Forward, and backward if the job is for training; all results by name.

        Args:
            kernel: of the job.
            whole: run as in a layer's call: through autograd, and without gradients of initial
                states, which torch's layers compute only if wanted.
        """
        spec, graph = self.job.spec, self.job.graph
        states = [leaf.name for leaf in graph.states]
        wants = spec.wants if whole and spec.wants else spec.wants | frozenset(states)
        with isolate(spec.device), quiet_warnings():
            if kernel.differentiable or (whole and spec.training):
                result, gradients = self._run_autograd(kernel, wants)
            else:
                result, gradients = self._run_kernel(kernel)
        synchronize(spec.device)
        results = {"output": result.output}
        results |= {f"last {name}": end for name, end in zip(states, result.last, strict=True)}
        if self.job.spec.training:
            for leaf, grad in zip(graph.leaves, gradients, strict=True):
                if grad is not None and leaf.name in wants:
                    results[f"gradient of {leaf.name}"] = grad
        return results

    def _run_kernel(self, kernel: Kernel) -> tuple[Result, tuple[Tensor | None, ...]]:
        with torch.no_grad():
            result = kernel.forward(self.call)
            if not self.job.spec.training:
                return result, ()
            gradients = kernel.backward(self.call, result.saved, self.cotangents, False)
        return result, gradients.tensors

    def _run_autograd(
        self, kernel: Kernel, wants: frozenset[str]
    ) -> tuple[Result, tuple[Tensor | None, ...]]:
        training = self.job.spec.training
        needs = [training and leaf.name in wants for leaf in self.job.graph.leaves]
        leaves = leaves_of(self.call.tensors, needs)
        call = self.call.with_tensors(leaves)
        with torch.set_grad_enabled(training):
            if kernel.differentiable:
                result = kernel.forward(call)
            else:
                output, *last = _KernelFunction.apply(kernel, call, *leaves)
                result = Result(output, tuple(last))
        d_output, d_last = self.cotangents
        gradients = vjp(result.values, leaves, (d_output, *d_last), needs)
        last = tuple(end.detach() for end in result.last)
        return Result(result.output.detach(), last), gradients


class _KernelFunction(Function):
    """A kernel with its own backward as a node of autograd."""

    @staticmethod
    def forward(ctx: Any, kernel: Kernel, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        output, last, saved = kernel.forward(call)
        ctx.save_for_backward(*tensors, *saved)
        ctx.set_materialize_grads(False)
        ctx.kernel, ctx.call = kernel, call
        return (output.detach() if is_view(output) else output, *last)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor | None, *d_last: Tensor | None) -> Any:  # type: ignore[override]
        saved, count = ctx.saved_tensors, len(ctx.call.tensors)
        call = ctx.call.with_tensors(saved[:count])
        cotangents = Cotangents(d_output, d_last)
        gradients = ctx.kernel.backward(call, saved[count:], cotangents, False)
        return (None, None, *gradients.tensors)


def synchronize(device: str) -> None:
    """Wait until a device has finished its work."""
    torch.get_device_module(device).synchronize()


def make_trial(job: Job, steps: int, batch: int, seed: int = 0, ends: bool = False) -> Trial:
    """Draw random arguments: x ~ N(0, 1), states ~ U(-1/2, 1/2), weights ~ U(-1/√H, 1/√H).

    Args:
        job: the job.
        steps: T.
        batch: B.
        seed: of a generator of its own.
        ends: whether last states have cotangents.
    """
    sizes = job.spec.sizes
    device = torch.device(job.spec.device)
    dtype: torch.dtype = getattr(torch, job.spec.dtype)
    source = np.random.default_rng(seed)  # torch's generators refuse to draw inside a vmap

    def scale(shape: tuple[int, ...], draw: Callable[[int], Any], size: float = 1.0) -> Tensor:
        count = math.prod(shape)
        values = torch.from_numpy(draw(min(count, _DRAWS)).astype(np.float32)).mul_(size)
        repeated = values if count <= _DRAWS else values.repeat(-(-count // _DRAWS))[:count]
        return repeated.view(shape).to(device, dtype)

    def uniform(shape: tuple[int, ...], bound: float) -> Tensor:
        return scale(shape, lambda count: source.uniform(-1, 1, count), bound)

    def normal(shape: tuple[int, ...]) -> Tensor:
        return scale(shape, source.standard_normal)

    graph = job.graph
    hidden = max(1, *shape_size(graph.states[0].shape, sizes)) if graph.states[0].shape else 1
    with torch.no_grad():
        states = [(batch, *shape_size(v.shape, sizes)) for v in graph.states]
        call = Call(
            tuple(normal((steps, batch, *shape_size(v.shape, sizes))) for v in graph.inputs),
            tuple(uniform(shape, 0.5) for shape in states),
            tuple(uniform(shape_size(v.shape, sizes), hidden**-0.5) for v in graph.weights),
        )
        cotangents = Cotangents(
            normal((steps, batch, *shape_size(graph.output_shape, sizes))),
            tuple(normal(shape) if ends else None for shape in states),
        )
        return Trial(job, call, cotangents)


_CALLS = 9  # timed calls after one that warms the caches
_ENOUGH_S = 0.3  # (s) time after which no further call begins


def phases(job: Job, engine: str, schedule: str, steps: int, batch: int) -> Mapping[str, float]:
    """Measure the seconds of a call by phase, summed over threads, in the fastest of several calls.
    Empty if the engine has no clock.

    Args:
        job: the job; its forward and, in training, its backward run.
        engine: its name.
        schedule: one of the engine's.
        steps: T.
        batch: B.
    """
    runner = registry.find(engine)
    with runner.undisturbed():
        kernel = runner.timed(job, schedule)
        if kernel is None:
            return {}
        trial = make_trial(job, steps, batch)
        trial.run(kernel)
        kernel.phases()
        samples: list[Mapping[str, float]] = []
        end = time.perf_counter() + _ENOUGH_S
        while not samples or (len(samples) < _CALLS and time.perf_counter() < end):
            trial.run(kernel)
            samples.append(kernel.phases())
    return min(samples, key=lambda phases: sum(phases.values()))


def shares(times: Mapping[str, float]) -> dict[str, float]:
    """Shares of the phases in the threads' computing time, and of :data:`WAITING` in all of their
    time."""
    total = sum(times.values())
    busy = total - times.get(WAITING, 0.0)
    return {name: s / (total if name == WAITING else busy) for name, s in times.items()}
