"""Means over the processes of a run: of gradients, of models, of a few numbers.

Local SGD: each process trains by itself, and now and then all average their models.

S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019, Algorithm 1; what the
optimizer remembers (momentum, AdamW's moments) is averaged too, so that between two averages all
processes start alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from elman.train.shared import SharedMemory

if TYPE_CHECKING:  # what measures sums does without it: it takes as long to import as torch
    from lightning_fabric import Fabric


def mean(values: Tensor) -> Tensor:
    """Replace values by their means over all processes: one message."""
    dist.all_reduce(values)
    return values.div_(dist.get_world_size())


def mean_of(parts: list[Tensor], memory: SharedMemory | None) -> Tensor:
    """Return the means of tensors of one dtype, joined, [N]: in shared memory, or one message."""
    found = None if memory is None else memory.mean(parts)
    return mean(torch.cat([part.flatten() for part in parts])) if found is None else found


@torch.no_grad()
def average_gradients(
    parameters: Iterable[nn.Parameter], numbers: Tensor, memory: SharedMemory | None = None
) -> Tensor:
    """Give all processes the mean gradients; one sum, of which gradients are views then.

    Args:
        parameters: in one order in all processes. One that has no gradient in any of them has none
            then; in some only, theirs count as zero.
        numbers [N]: what else is averaged.
        memory: of the processes, where they may share some.

    Returns:
        The means of the numbers, [N].
    """
    learnt = [one for one in parameters if one.requires_grad]
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in learnt]
    there = numbers.new_tensor([one.grad is not None for one in learnt])
    told, means = torch.cat((numbers, there)), dict[int, Tensor]()
    for parts in alike([told, *gradients]):
        pieces = mean_of(parts, memory).split([part.numel() for part in parts])
        means |= {id(part): piece.view_as(part) for part, piece in zip(parts, pieces, strict=True)}
    numbers, there = means[id(told)].tensor_split([len(numbers)])
    for one, gradient, share in zip(learnt, gradients, there.tolist(), strict=True):
        one.grad = means[id(gradient)] if share else None
    return numbers


@torch.no_grad()
def average(fabric: Fabric, model: Any, optimizer: Any, memory: SharedMemory | None = None) -> None:
    """Give all processes the mean of their weights and of what their optimizers remember.

    Args:
        memory: of the processes, where they may share some.
    """
    if fabric.world_size == 1:
        return
    tensors = [parameter.detach() for parameter in model.parameters()]
    tensors += list(remembered(optimizer))
    for parts in alike(tensors):
        take_apart(mean_of(parts, memory), parts)


def remembered(optimizer: Any) -> Iterator[Tensor]:
    """The optimizer's averages, not its counters, which are the same in every process."""
    for values in optimizer.state_dict()["state"].values():
        for value in values.values():
            if isinstance(value, Tensor) and value.dim():
                yield value


def alike(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of each dtype, which are sent together: one message instead of many."""
    for dtype in {tensor.dtype: None for tensor in tensors}:
        yield [tensor for tensor in tensors if tensor.dtype is dtype]


def take_apart(flat: Tensor, parts: list[Tensor]) -> None:
    """Copy the values of a joined tensor [N] back to where they came from."""
    for part, value in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
        part.copy_(value.view_as(part))
