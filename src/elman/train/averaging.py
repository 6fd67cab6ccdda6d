"""Means over the processes of a run: of gradients, of models, of a few numbers.

Local SGD: each process trains by itself, and now and then all average their models.

S. U. Stich, "Local SGD converges fast and communicates little", ICLR 2019, Algorithm 1; the state
of the optimizer (momentum, AdamW's moments) is averaged too, so that all processes start alike
between two averages. torch's ``model_averaging.utils.average_parameters`` leaves all parameters as
views of one buffer, which safetensors refuses to write; so the buffer is copied back here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def mean(values: Tensor) -> Tensor:
    """Replace values by their means over all processes: one message."""
    dist.all_reduce(values)
    return values.div_(dist.get_world_size())


@torch.no_grad()
def average_tensors(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their means over all processes: one message for each dtype."""
    for dtype in {tensor.dtype: None for tensor in tensors}:
        parts = [tensor for tensor in tensors if tensor.dtype is dtype]
        joined = mean(torch.cat([part.flatten() for part in parts]))
        pieces = joined.split([part.numel() for part in parts])
        for part, piece in zip(parts, pieces, strict=True):
            part.copy_(piece.view_as(part))


def average_gradients(parameters: Iterable[nn.Parameter], numbers: Tensor) -> None:
    """Give all processes the mean gradients, and the means of some numbers in the same message.

    A parameter that has a gradient in some processes only counts as zero in the others; one that
    has none anywhere keeps none.

    Args:
        parameters: in one order in all processes.
        numbers [N]: replaced by their means.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    shares = numbers.new_tensor([float(parameter.grad is not None) for parameter in trained])
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    average_tensors([numbers, shares, *gradients])
    for parameter, gradient, share in zip(trained, gradients, shares.tolist(), strict=True):
        parameter.grad = gradient if share else None


def average_models(model: nn.Module, optimizer: Any) -> None:
    """Give all processes the mean of their weights and of their optimizers' states."""
    average_tensors([*model.parameters(), *averaged_states(optimizer)])


def averaged_states(optimizer: Any) -> Iterator[Tensor]:
    """The optimizer's averages, not its counters, which are the same in every process."""
    for values in optimizer.state_dict()["state"].values():
        for value in values.values():
            if isinstance(value, Tensor) and value.dim():
                yield value
