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
    own = own_leaves(tensors, needs)
    with torch.enable_grad():
        values = _reference(primal, own)
    return vjp(values, own, d, needs, torch.is_grad_enabled())


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
    own = own_leaves(flat, needs)
    tensors, d = back.cut(own)
    with torch.enable_grad():
        wants = back.primal.wants
        ready = [
            t if t.requires_grad else t.detach().requires_grad_(want)
            for t, want in zip(tensors, wants, strict=True)
        ]
        made = vjp(_reference(back.primal, ready), ready, d, wants, True)
    pairs = [(made[k], one) for k, one in zip(back.wanted, v, strict=True)]
    there = [(value, one) for value, one in pairs if value is not None]
    values = [value for value, _ in there]
    return vjp(values, own, [one for _, one in there], needs, torch.is_grad_enabled())
