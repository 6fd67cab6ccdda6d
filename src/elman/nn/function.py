"""One autograd function for all kernels: save, call, hand back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from elman.engines.base import Kernel
from elman.nn.transforms import in_func, moved, torch_ops_alone

_C: Any = torch._C
_keep_graph: Callable[[], bool] | None = getattr(
    _C._autograd, "_get_current_graph_task_keep_graph", None
)

Gradients = tuple[Tensor | None, ...]


class Sweep(Function):
    """All steps of one layer in one direction, on a kernel that has its own backward.

    ``apply(kernel, oracle, counts, stacked, *tensors)``: ``tensors`` are the inputs, states and
    weights, ``counts`` says how many of the first two, ``oracle()`` gives a differentiable kernel
    for the same cell, ``stacked`` is as for :func:`run`. Returns the output and the last states.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kernel: Kernel,
        oracle: Callable[[], Kernel],
        counts: tuple[int, int],
        stacked: bool,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run the kernel and save its arguments and what it asks for."""
        first, second = counts
        output, last, saved = kernel.forward(
            tensors[:first], tensors[first : first + second], tensors[first + second :]
        )
        ctx.save_for_backward(*tensors, *saved)
        ctx.set_materialize_grads(False)
        ctx.kernel, ctx.oracle, ctx.counts, ctx.stacked = kernel, oracle, counts, stacked
        ctx.total = len(tensors)
        if output._is_view():
            # the output of a function must be no view, or it could not be detached in place; it
            # still shares its version with the tape, so that writing to it is detected
            output = output.detach()
        return (output, *last)

    @staticmethod
    def backward(ctx: Any, d_output: Tensor | None, *d_last: Tensor | None) -> Any:  # type: ignore[override]
        """The kernel's own backward; through the oracle if a second derivative may be asked for."""
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        first, second = ctx.counts
        tensors = saved[: ctx.total]
        late = moved((d_output, *d_last))
        if late or torch.is_grad_enabled():
            return (None, None, None, None, *_twice(ctx, tensors, (d_output, *d_last), late))
        inputs, states = tensors[:first], tensors[first : first + second]
        keep = True if _keep_graph is None else _keep_graph()
        d_inputs, d_states, d_weights = ctx.kernel.backward(
            inputs,
            states,
            tensors[first + second :],
            saved[ctx.total :],
            d_output,
            d_last,
            keep,
        )
        return (None, None, None, None, *d_inputs, *d_states, *d_weights)


def _twice(
    ctx: Any, tensors: Sequence[Tensor], cotangents: Sequence[Tensor | None], late: bool
) -> Gradients:
    """Gradients that can be differentiated again, from the oracle on the saved arguments; ``late``:
    cotangents are of a transform that began after the forward."""
    first, second = ctx.counts

    def run(*own: Tensor) -> tuple[Tensor, ...]:
        states, weights = own[first : first + second], own[first + second :]
        output, last = through(ctx.oracle(), own[:first], states, weights, ctx.stacked)
        return (output, *last)

    needs = [tensor.requires_grad for tensor in tensors]
    if late and in_func():
        return _in_func(run, tensors, cotangents, needs)
    own = own_leaves(tensors, needs)
    with torch.enable_grad(), torch_ops_alone(late):
        values = run(*own)
    return tuple(pulled(values, own, cotangents, needs, torch.is_grad_enabled()))


def _in_func(
    run: Callable[..., tuple[Tensor, ...]],
    tensors: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> Gradients:
    """The same inside torch.func, which has a pullback of its own."""
    wanted = [k for k, need in enumerate(needs) if need]

    def of_wanted(*own: Tensor) -> tuple[Tensor, ...]:
        every = list(tensors)
        for k, value in zip(wanted, own, strict=True):
            every[k] = value
        return run(*every)

    pullback: Any = torch.func.vjp(of_wanted, *(tensors[k].detach() for k in wanted))
    values, pull = pullback[0], pullback[1]
    made = pull(
        tuple(
            torch.zeros_like(value) if d is None else d
            for value, d in zip(values, cotangents, strict=True)
        )
    )
    found: list[Tensor | None] = [None] * len(tensors)
    for k, value in zip(wanted, made, strict=True):
        found[k] = value
    return tuple(found)


def own_leaves(tensors: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor]:
    """Tensors to differentiate by, each apart from all others.

    Aliases where a derivative of the gradient may follow; else without any history.
    """
    if torch.is_grad_enabled():
        return [tensor.view_as(tensor) for tensor in tensors]
    return [t.detach().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]


def pulled(
    values: Sequence[Tensor],
    leaves: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    needs: Sequence[bool],
    again: bool,
) -> list[Tensor | None]:
    """What flows from values back into the leaves that need it; None where nothing does.

    Args:
        values, cotangents: of each value, None for zero.
        leaves, needs: for each leaf, whether it gets a gradient.
        again: whether the gradients can be differentiated.
    """
    found: list[Tensor | None] = [None] * len(leaves)
    pairs = [
        (value, d)
        for value, d in zip(values, cotangents, strict=True)
        if d is not None and value.requires_grad
    ]
    wanted = [k for k, need in enumerate(needs) if need]
    if pairs and wanted:
        roots, ds = zip(*pairs, strict=True)
        own = [leaves[k] for k in wanted]
        made = torch.autograd.grad(roots, own, ds, create_graph=again, allow_unused=True)
        for k, value in zip(wanted, made, strict=True):
            found[k] = value
    return found


def through(
    kernel: Kernel,
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    stacked: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a differentiable kernel; arguments and results as of :func:`run`."""
    if stacked:
        states = [state.squeeze(0) for state in states]
    output, last, _ = kernel.forward(inputs, states, weights)
    # stacked, not viewed: a user may detach_() a state, and no view allows that
    return output, tuple([torch.stack((end,)) for end in last]) if stacked else last


def run(
    kernel: Kernel,
    oracle: Callable[[], Kernel],
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    training: bool,
    stacked: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a kernel with or without autograd.

    Args:
        kernel: what to run.
        oracle: gives a differentiable kernel for the same cell, for second derivatives.
        inputs, states, weights: as :meth:`Kernel.forward` takes them.
        training: whether a gradient may be asked for.
        stacked: whether each state is [1, B, n], as it comes and goes in a stack of one layer.

    Returns:
        The output and the last states, these with the shapes of ``states``.
    """
    if kernel.differentiable:
        return through(kernel, inputs, states, weights, stacked)
    if not training:
        output, last, _ = kernel.forward(inputs, states, weights)
        return output, last
    output, *rest = Sweep.apply(
        kernel, oracle, (len(inputs), len(states)), stacked, *inputs, *states, *weights
    )
    return output, tuple(rest)
