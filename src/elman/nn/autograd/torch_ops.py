"""First and second derivatives by torch ops alone: where autograd batches cotangents itself
(``is_grads_batched``), none of our functions may see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from elman.engines.packed import for_layout
from elman.engines.reference.engine import ReferenceKernel
from elman.engines.vjp import vjp
from elman.nn.autograd.derived import Pass
from elman.nn.autograd.function import own_leaves
from elman.nn.autograd.pullback import Pullback, Some


def _reference(primal: Pass, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The output and the last states by torch ops."""
    kernel = for_layout(ReferenceKernel(primal.of.graph, dict(primal.of.dims)), primal.packed)
    return kernel.forward(primal.call(tensors)).values


def gradients_by_torch_ops(primal: Pass, tensors: Sequence[Tensor], d: Some, needs: Any) -> Any:
    """The gradients of a forward.

    Args:
        primal: the forward.
        tensors: its arguments.
        d: a cotangent or None for each of its results.
        needs: which arguments get a gradient.
    """
    leaves = own_leaves(tensors, needs)
    with torch.enable_grad():
        values = _reference(primal, leaves)
    return vjp(values, leaves, d, needs, torch.is_grad_enabled())


def second_derivatives_by_torch_ops(
    back: Pullback, flat: Sequence[Tensor], v: Some, needs: Any
) -> Any:
    """The gradients of a pullback.

    Args:
        back: the pullback.
        flat: its arguments.
        v: a cotangent or None for each of its results.
        needs: which arguments get a gradient.
    """
    leaves = own_leaves(flat, needs)
    tensors, d = back.cut(leaves)
    with torch.enable_grad():
        wants = back.primal.wants
        ready = [
            t if t.requires_grad else t.detach().requires_grad_(want)
            for t, want in zip(tensors, wants, strict=True)
        ]
        first = vjp(_reference(back.primal, ready), ready, d, wants, True)
    pairs = [(first[k], direction) for k, direction in zip(back.wanted, v, strict=True)]
    reached = [(value, direction) for value, direction in pairs if value is not None]
    values = [value for value, _ in reached]
    return vjp(
        values,
        leaves,
        [direction for _, direction in reached],
        needs,
        torch.is_grad_enabled(),
    )
