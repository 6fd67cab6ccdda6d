"""Memory of tensors: copies of them, and which of them share some."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from elman.torch_internals import is_wrapped


def plain_value(tensor: Tensor) -> Tensor:
    """A copy of a tensor; of one that a transform of torch.func hides, another one like it."""
    return some_value(tensor, tensor.shape) if is_wrapped(tensor) else tensor.detach().clone()


def some_value(like: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of a shape and of the kind of another one: random numbers, or whole ones of 0."""
    make = torch.rand if like.is_floating_point() else torch.zeros
    return make(shape, dtype=like.dtype, device=like.device)


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one storage have an element in common."""
    if a.stride() != b.stride() or a.shape != b.shape:
        return True
    dims = sorted(zip(a.stride(), a.shape, strict=True), reverse=True)
    return _meet(int(a.storage_offset()) - int(b.storage_offset()), dims)


def _meet(distance: int, dims: Sequence[tuple[int, int]]) -> bool:
    """Whether strides, each taken less than its size times in either direction, cover a
    distance."""
    if not dims:
        return distance == 0
    (stride, size), rest = dims[0], dims[1:]
    if stride == 0:
        return _meet(distance, rest)
    count = distance // stride
    return any(abs(n) < size and _meet(distance - n * stride, rest) for n in (count, count + 1))
