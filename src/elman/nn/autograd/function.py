"""The autograd function of all kernels that have a backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from elman.engines.base import Kernel
from elman.engines.call import Call, Cotangents, Result
from elman.engines.vjp import leaves_of, vjp
from elman.nn.autograd.transforms import inside_func, late_cotangents, require_torch_ops
from elman.torch_internals import backward_keeps_graph, is_view


class KernelFunction(Function):
    """All steps on a kernel that has its own backward.

    ``apply(kernel, oracle, call, *call.tensors)``: ``oracle()`` returns a differentiable kernel of
    the same step. Returns the output and the last states.
    """

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, oracle: Callable[[], Kernel], call: Call, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Run the kernel and save its arguments and the tensors that it saves."""
        output, last, saved = kernel.forward(call)
        ctx.save_for_backward(*tensors, *saved)
        ctx.set_materialize_grads(False)
        ctx.kernel, ctx.oracle, ctx.how = kernel, oracle, (call.packed, call.stacked)
        ctx.ends = len(call.inputs), len(call.inputs) + len(call.states), len(tensors)
        if is_view(output):
            # the output of a function must not be a view, or it could not be detached in place; it
            # still shares its version with the tape, so that writing to it is detected
            output = output.detach()
        return (output, *last)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor | None, *d_last: Tensor | None) -> Any:  # type: ignore[override]
        """The kernel's own backward; through the oracle if a second derivative may follow."""
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        first, second, end = ctx.ends
        call = Call(saved[:first], saved[first:second], saved[second:end], *ctx.how)
        tensors, cotangents = saved[:end], (d_output, *d_last)
        late = late_cotangents(cotangents)
        if late or torch.is_grad_enabled():

            def run(*leaves: Tensor) -> tuple[Tensor, ...]:
                return through(ctx.oracle(), call.with_tensors(leaves)).values

            return (None, None, None, *through_torch_ops(run, tensors, cotangents, late))
        d_inputs, d_states, d_weights = ctx.kernel.backward(
            call,
            saved[end:],
            Cotangents(d_output, d_last),
            backward_keeps_graph(),
        )
        return (None, None, None, *d_inputs, *d_states, *d_weights)


def through_torch_ops(
    run: Callable[..., tuple[Tensor, ...]],
    tensors: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    late: bool = False,
    needs: Sequence[bool] | None = None,
) -> Sequence[Tensor | None]:
    """Compute gradients that can be differentiated again.

    Args:
        run: the function of the tensors in torch ops.
        tensors: saved arguments.
        cotangents: of its results.
        late: whether the cotangents belong to a transform that began after the forward.
        needs: which arguments get a gradient; None: those that require one.
    """
    needs = [tensor.requires_grad for tensor in tensors] if needs is None else needs
    if late and inside_func():
        return _in_func(run, tensors, cotangents, needs)
    # one leaf per argument, even if two are one tensor: aliases that keep the history if the
    # gradient may be differentiated, else detached copies
    watched = torch.is_grad_enabled()
    leaves = [t.view_as(t) for t in tensors] if watched else leaves_of(tensors, needs)
    with torch.enable_grad(), require_torch_ops(late):
        values = run(*leaves)
    return vjp(values, leaves, cotangents, needs, torch.is_grad_enabled())


def _in_func(
    run: Callable[..., tuple[Tensor, ...]],
    tensors: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """:func:`through_torch_ops` inside torch.func, by ``torch.func.vjp``."""
    differentiable = [k for k, need in enumerate(needs) if need]

    def run_differentiable(*leaves: Tensor) -> tuple[Tensor, ...]:
        arguments = list(tensors)
        for k, value in zip(differentiable, leaves, strict=True):
            arguments[k] = value
        return run(*arguments)

    pullback: Any = torch.func.vjp(
        run_differentiable, *(tensors[k].detach() for k in differentiable)
    )
    values, pull = pullback[0], pullback[1]
    grads = pull(
        tuple(
            torch.zeros_like(value) if d is None else d
            for value, d in zip(values, cotangents, strict=True)
        )
    )
    gradients: list[Tensor | None] = [None] * len(tensors)
    for k, grad in zip(differentiable, grads, strict=True):
        gradients[k] = grad
    return gradients


def through(kernel: Kernel, call: Call) -> Result:
    """Run a differentiable kernel; for arguments and results see :meth:`BoundKernel.run`."""
    if not call.stacked:
        return kernel.forward(call)
    rows = zip(*[state.unbind(0) for state in call.states])
    states = tuple([state for layer in rows for state in layer])
    output, last, _ = kernel.forward(call._replace(states=states, stacked=False))
    # stacked, not viewed: a user may detach_() a state, and no view allows that
    count = len(call.states)
    return Result(output, tuple([torch.stack(last[k::count]) for k in range(count)]))


class BoundKernel(NamedTuple):
    """The kernel that runs calls of one kind.

    Attributes:
        kernel: of one layer in one direction, or of several.
        oracle: returns a differentiable kernel of the same step.
        training: whether gradients may be wanted.
    """

    kernel: Kernel
    oracle: Callable[[], Kernel]
    training: bool

    def run(self, call: Call) -> Result:
        """Run all steps, with or without autograd.

        Args:
            call: see :meth:`Kernel.forward`; states may be stacked.

        Returns:
            The output and the last states, in the shapes of the call's states.
        """
        kernel = self.kernel
        if kernel.differentiable:
            return through(kernel, call)
        if not self.training:
            return kernel.forward(call)
        tensors = (*call.inputs, *call.states, *call.weights)
        output, *last = KernelFunction.apply(kernel, self.oracle, call, *tensors)
        return Result(output, tuple(last))
