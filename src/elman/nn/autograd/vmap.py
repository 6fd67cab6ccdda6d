"""A vmap as a batch: its slices side by side in the batch, or one after another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def picked(tensors: Sequence[Tensor], dims: Sequence[int | None], index: int) -> list[Tensor]:
    """One slice of each tensor that has an axis of slices."""
    return [
        tensor if dim is None else tensor.select(dim, index)
        for tensor, dim in zip(tensors, dims, strict=True)
    ]


def stacked(each: Sequence[tuple[Tensor, ...]]) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Results of all slices along a new axis, and where it lies."""
    results = tuple(torch.stack(values) for values in zip(*each, strict=True))
    return results, (0,) * len(results)


def folded(
    tensors: Sequence[Tensor],
    dims: Sequence[int | None],
    axes: Sequence[int | None],
    count: int,
) -> list[Tensor]:
    """Tensors whose batch holds all slices, one after another."""
    slices: list[Tensor] = []
    for tensor, dim, axis in zip(tensors, dims, axes, strict=True):
        if axis is not None:
            if dim is None:
                shape = tensor.shape
                tensor = tensor.unsqueeze(axis).expand(*shape[:axis], count, *shape[axis:])
            else:
                tensor = tensor.movedim(dim, axis)
            tensor = tensor.flatten(axis, axis + 1)
        slices.append(tensor)
    return slices
