"""All steps on kernels, as functions that support every transform of torch.

Two functions are closed under differentiation: the forward, and its gradients. The derivative of
either in some direction is the forward, or the gradients, of the step's tangent. A vmap over
samples is a larger batch; only per-sample gradients of weights need sums of their own
(``per_sample``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from elman.engines.base import DifferentiableKernel, Kernel
from elman.engines.call import Call, Cotangents, Result
from elman.engines.packed import for_layout
from elman.engines.reference.engine import ReferenceKernel
from elman.engines.vjp import vjp
from elman.errors import warn_once
from elman.nn.autograd.derived import COMPILED, DerivedStep
from elman.nn.autograd.function import through_torch_ops
from elman.nn.autograd.pullback import Pass, Pullback, Some, fold, map_slices
from elman.nn.autograd.transforms import DUAL, FUNC, is_batched, transform_reason
from elman.torch_internals import differentiated_in_vmap, forward_gradients, forward_mode


class Differentiable(DifferentiableKernel):
    """A cell under transforms and higher derivatives; autograd and torch.func see through it.

    Args:
        of: the cell's step.
        reference: the kernel for steps that no engine supports.
    """

    engine = "reference"
    packs = True

    def __init__(self, of: DerivedStep, reference: Kernel) -> None:
        self._of, self._reference = of, reference

    def forward(self, call: Call) -> Result:
        tensors, like = call.tensors, call.states[0]
        reason = transform_reason(tensors)
        derivable = reason in (None, FUNC, DUAL)
        engine = self._of.engine(like) if derivable and not self._of.graph.clips else None
        if engine is None:
            if derivable:
                subject = f"{like.dtype} on {like.device.type}"
                if self._of.graph.clips:
                    subject = f"{self._of.name}, which clips gradients,"
                warn_once(
                    f"transforms and second derivatives of {subject} "
                    f"run through engine reference, step by step"
                )
            return for_layout(self._reference, call.packed).forward(call)
        forward = Pass(self._of, call.packed, _flags(tensors), differentiated_in_vmap(call.weights))
        output, *last = Forward.apply(forward, *tensors)
        return Result(output, tuple(last))


def _flags(tensors: Sequence[Tensor]) -> tuple[bool, ...]:
    return tuple([tensor.requires_grad for tensor in tensors])


def gradients(primal: Pass, tensors: Sequence[Tensor], d: Some) -> list[Tensor | None]:
    """Gradients of the arguments that a forward wants, from the cotangents of its results."""
    by_argument: list[Tensor | None] = [None] * len(tensors)
    back = Pullback(primal, tuple([d_value is not None for d_value in d]))
    if any(back.present) and back.targets:
        results = Backward.apply(back, *tensors, *(d_value for d_value in d if d_value is not None))
        for k, value in zip(back.targets, results, strict=True):
            by_argument[k] = value
    return by_argument


def _moving(primal: Pass, tensors: Sequence[Tensor], d: Some) -> tuple[Pass, list[Tensor]]:
    """The forward of the tangent, and its arguments: primals followed by tangents, per kind."""
    first, second = primal.of.counts
    states = range(first, first + second)
    moves = [
        torch.zeros_like(tensor) if d_value is None and k in states else d_value
        for k, (tensor, d_value) in enumerate(zip(tensors, d, strict=True))
    ]
    of = primal.of.tangent(tuple([d_value is not None for d_value in moves]))
    arguments: list[Tensor] = []
    for kind in (slice(first), slice(first, first + second), slice(first + second, None)):
        arguments += tensors[kind]
        arguments += [d_value for d_value in moves[kind] if d_value is not None]
    return Pass(of, primal.packed, _flags(arguments)), arguments


def _fixed(primal: Pass, moving: Pass, values: Sequence[Any], default: Any) -> list[Any]:
    """Map values of a forward's arguments to its tangent's; ``default`` for the tangents."""
    by_name = dict(zip(primal.of.names, values, strict=True))
    return [by_name.get(name, default) for name in moving.of.names]


class Forward(Function):
    """``apply(primal, *tensors)``: the output and the last states."""

    @staticmethod
    def forward(primal: Pass, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the kernel."""
        return primal.forward(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the arguments."""
        ctx.primal, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *d: Tensor | None) -> Any:  # type: ignore[override]
        """The wanted gradients."""
        wants = tuple(ctx.needs_input_grad[1:])
        if is_batched(d):
            run = _by_torch_ops(ctx.primal)
            return (None, *through_torch_ops(run, ctx.saved_tensors, d, needs=wants))
        return (None, *gradients(replace(ctx.primal, wants=wants), ctx.saved_tensors, d))

    @staticmethod
    def jvp(ctx: Any, _: Any, *d: Tensor | None) -> Any:
        """The tangent's forward."""
        moving, tensors = _moving(ctx.primal, ctx.saved_tensors, d)
        output, *last = Forward.apply(moving, *tensors)
        return (output, *last[len(last) // 2 :])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], primal: Pass, *tensors: Tensor) -> Any:
        """Fold the slices into the batch; slices with different weights are separate calls."""
        back = Pullback(primal, (False,) * (1 + primal.of.counts[1]))
        axes, count, dims = back.axes(), info.batch_size, in_dims[1:]
        if back.separate(dims):
            return map_slices(Forward.apply, primal, tensors, dims, count)
        primal = replace(primal, by_sample=primal.sampled and primal.of.order <= COMPILED)
        output, *last = Forward.apply(primal, *fold(tensors, dims, axes, count))
        results = (
            output.unflatten(1, (count, -1)),
            *(end.unflatten(0, (count, -1)) for end in last),
        )
        return results, (1, *(0 for _ in last))


class Backward(Function):
    """``apply(back, *tensors, *cotangents)``: the wanted gradients."""

    @staticmethod
    def forward(back: Pullback, *flat: Tensor) -> tuple[Tensor, ...]:
        """Run the kernel's backward; before it the forward, if its saved tensors are not cached."""
        tensors, d = back.cut(flat)
        primal = replace(back.primal, by_sample=False)
        kernel, saved = primal.recall(tensors)
        cotangents = Cotangents(d[0], tuple(d[1:]))
        gradients = kernel.backward(primal.call(tensors), saved, cotangents, True)
        return back.fill(tensors, gradients.tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the arguments."""
        ctx.back, *flat = inputs
        ctx.save_for_backward(*flat)
        ctx.save_for_forward(*flat)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *v: Tensor | None) -> Any:  # type: ignore[override]
        """Forward and gradients of the tangent, in the direction of ``v``."""
        back: Pullback = ctx.back
        tensors, d = back.cut(ctx.saved_tensors)
        needs = ctx.needs_input_grad[1:]
        count = len(tensors)
        if all(d_value is None for d_value in v):
            return (None, *(None for _ in needs))
        if is_batched(v):
            run = _gradients_by_torch_ops(back)
            return (None, *through_torch_ops(run, ctx.saved_tensors, v, needs=needs))
        directions: list[Tensor | None] = [None] * count
        for k, d_value in zip(back.targets, v, strict=True):
            directions[k] = d_value
        moving, tangent_arguments = _moving(back.primal, tensors, directions)
        wants = tuple(_fixed(back.primal, moving, needs[:count], False))
        moving = replace(moving, wants=wants)
        d_cotangents: list[Tensor | None] = [None] * len(d)
        if any(needs[count:]):
            output, *last = Forward.apply(moving, *tangent_arguments)
            d_cotangents = [output, *last[len(last) // 2 :]]
        arguments = gradients(moving, tangent_arguments, _of_tangent(d))
        by_name = dict(zip(moving.of.names, arguments, strict=True))
        return (
            None,
            *(by_name[name] for name in back.primal.of.names),
            *(d_value for d_value, flag in zip(d_cotangents, back.present, strict=True) if flag),
        )

    @staticmethod
    def jvp(ctx: Any, _: Any, *moves: Tensor | None) -> Any:
        """Gradients of the tangent, plus the gradients for the tangents of the cotangents."""
        back: Pullback = ctx.back
        tensors, d = back.cut(ctx.saved_tensors)
        count = len(tensors)
        total: list[Tensor | None] = [None] * count
        if any(move is not None for move in moves[:count]):
            moving, tangent_arguments = _moving(back.primal, tensors, moves[:count])
            wants = tuple(_fixed(back.primal, moving, back.primal.wants, False))
            arguments = gradients(replace(moving, wants=wants), tangent_arguments, _of_tangent(d))
            by_name = dict(zip(moving.of.names, arguments, strict=True))
            total = [by_name[name] for name in back.primal.of.names]
        cotangents = iter(moves[count:])
        d_moves = [next(cotangents) if flag else None for flag in back.present]
        further = gradients(back.primal, tensors, d_moves)
        return tuple(_sum(total[k], further[k], tensors[k]) for k in back.targets)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], back: Pullback, *flat: Tensor) -> Any:
        """Fold the slices into the batch; gradients of weights are summed for each slice."""
        axes, count, dims = back.axes(), info.batch_size, in_dims[1:]
        by_sample = any(axes[k] is None for k in back.targets)
        each_alone = by_sample and (back.primal.of.order > COMPILED or forward_mode())
        if each_alone or back.separate(dims):
            return map_slices(Backward.apply, back, flat, dims, count)
        batch = fold(flat, dims, axes, count)
        if by_sample:
            results = PerSample.apply(back, count, *batch)
        else:
            results = Backward.apply(back, *batch)
        return back.unfold(results, (count, -1), None)


class PerSample(Function):
    """``apply(back, samples, *tensors, *cotangents)``: the wanted gradients; those of weights are
    [samples, ...]."""

    @staticmethod
    def forward(back: Pullback, samples: int, *flat: Tensor) -> tuple[Tensor, ...]:
        """Run the kernel that returns the factors of each row, and sum them per sample."""
        tensors, d = back.cut(flat)
        primal = replace(back.primal, by_sample=True)
        _, saved = primal.recall(tensors)
        kernel = primal.of.per_sample(tensors[0], primal.wants)
        cotangents = Cotangents(d[0], tuple(d[1:]))
        gradients = kernel.by_sample(primal.call(tensors), saved, cotangents, samples)
        return back.fill(tensors, gradients.tensors, samples)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the arguments."""
        ctx.back, ctx.samples, *flat = inputs
        ctx.save_for_backward(*flat)
        ctx.save_for_forward(*flat)

    @staticmethod
    def backward(ctx: Any, *v: Tensor) -> Any:  # type: ignore[override]
        """Second derivatives, one sample after another."""
        back, samples, axes = ctx.back, ctx.samples, ctx.back.axes()

        def run(*flat: Tensor) -> tuple[Tensor, ...]:
            slices = [
                [value] * samples if axis is None else value.chunk(samples, axis)
                for value, axis in zip(flat, axes, strict=True)
            ]
            outputs = [
                Backward.apply(back.part(k), *arguments)
                for k, arguments in enumerate(zip(*slices, strict=True))
            ]
            return tuple(
                torch.stack(values) if axes[k] is None else torch.cat(values, axes[k])
                for k, values in zip(back.targets, zip(*outputs, strict=True), strict=True)
            )

        pullback: Any = torch.func.vjp(run, *ctx.saved_tensors)[1]
        return (None, None, *pullback(v))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], back: Pullback, samples: int, *flat: Tensor
    ) -> Any:
        """Fold the slices into the samples."""
        axes, count, dims = back.axes(), info.batch_size, in_dims[2:]
        if back.separate(dims):
            return map_slices(
                lambda part, *slices: PerSample.apply(part, samples, *slices),
                back, flat, dims, count,
            )  # fmt: skip
        results = PerSample.apply(back, count * samples, *fold(flat, dims, axes, count))
        return back.unfold(results, (count, -1), (count, samples))


def _by_torch_ops(primal: Pass) -> Callable[..., tuple[Tensor, ...]]:
    """The forward by torch ops alone, for batched cotangents of autograd (``is_grads_batched``)."""
    kernel = for_layout(ReferenceKernel(primal.of.graph, dict(primal.of.dims)), primal.packed)
    return lambda *tensors: kernel.forward(primal.call(tensors)).values


def _gradients_by_torch_ops(back: Pullback) -> Callable[..., tuple[Tensor, ...]]:
    """The gradients of a forward by torch ops alone, see :func:`_by_torch_ops`."""

    def run(*flat: Tensor) -> tuple[Tensor, ...]:
        tensors, d = back.cut(flat)
        wants = back.primal.wants
        leaves = [
            t if t.requires_grad else t.detach().requires_grad_(is_wanted)
            for t, is_wanted in zip(tensors, wants, strict=True)
        ]
        grads = vjp(_by_torch_ops(back.primal)(*leaves), leaves, d, wants, True)
        return back.fill(tensors, grads)

    return run


def _of_tangent(d: Some) -> list[Tensor | None]:
    """Cotangents of a tangent's results: output, states, tangents of the states."""
    return [d[0], *(None for _ in d[1:]), *d[1:]]


def _sum(a: Tensor | None, b: Tensor | None, like: Tensor) -> Tensor:
    if a is None:
        return torch.zeros_like(like) if b is None else b
    with forward_gradients():
        return a if b is None else a + b
