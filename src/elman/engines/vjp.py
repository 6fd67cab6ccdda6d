"""Gradients through torch code: vector-Jacobian products of values by leaves."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from elman.torch_internals import differentiate


def vjp(
    values: Sequence[Tensor],
    leaves: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
    needs: Sequence[bool],
    create_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """Gradients of the leaves that need one; None for a leaf that no value depends on.

    Args:
        values, cotangents: values computed from the leaves, and their cotangents; None for zero.
        leaves, needs: for each leaf, whether it gets a gradient.
        create_graph: whether the gradients can be differentiated.
    """
    gradients: list[Tensor | None] = [None] * len(leaves)
    pairs = [
        (value, d)
        for value, d in zip(values, cotangents, strict=True)
        if d is not None and value.requires_grad
    ]
    indices = [k for k, need in enumerate(needs) if need]
    if pairs and indices:
        roots, ds = zip(*pairs, strict=True)
        inputs = [leaves[k] for k in indices]
        grads = differentiate(roots, inputs, ds, create_graph)
        for k, grad in zip(indices, grads, strict=True):
            gradients[k] = grad
    return tuple(gradients)


def leaves_of(tensors: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor]:
    """Detached copies as leaves, which require gradients where ``needs`` says so."""
    return [t.detach().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
