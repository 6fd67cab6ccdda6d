"""Local SGD: each process trains by itself, and now and then all average their models.

S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019, Algorithm 1; what the
optimizer remembers (momentum, AdamW's moments) is averaged too, so that between two averages all
processes start alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor


def unsynchronized(fabric: Fabric, model: Any, alone: bool) -> AbstractContextManager[None]:
    """A forward and backward whose gradients stay in this process, if ``alone``."""
    if not alone or fabric.world_size == 1:
        return nullcontext()
    return fabric.no_backward_sync(model)


@torch.no_grad()
def average(fabric: Fabric, model: Any, optimizer: Any) -> None:
    """Give all processes the mean of their weights and of what their optimizers remember."""
    if fabric.world_size == 1:
        return
    tensors = [parameter.detach() for parameter in model.parameters()]
    tensors += list(remembered(optimizer))
    for flat, parts in joined(tensors):
        mean = fabric.all_reduce(flat, reduce_op="mean")
        assert isinstance(mean, Tensor), "the mean of a tensor is one"
        for part, value in zip(parts, mean.split([part.numel() for part in parts])):
            part.copy_(value.view_as(part))


def remembered(optimizer: Any) -> Iterator[Tensor]:
    """The optimizer's averages, not its counters, which are the same in every process."""
    for values in optimizer.state_dict()["state"].values():
        for value in values.values():
            if isinstance(value, Tensor) and value.dim():
                yield value


def joined(tensors: list[Tensor]) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """One tensor [N] per dtype, and whose values stand in it: one message instead of many."""
    for dtype in {tensor.dtype: None for tensor in tensors}:
        parts = [tensor for tensor in tensors if tensor.dtype is dtype]
        yield torch.cat([part.flatten() for part in parts]), parts
