"""Weights, gradients and what the optimizer remembers, divided among the processes of a run.

Each process holds its rows of every parameter (torch's FSDP2, ``fully_shard``). A part of the
model - embedding, recurrent stack, read-out - has its whole weights in a process from its forward
to the end of it and again for its backward; then the sum of its gradients is divided anew.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor, nn

from elman.errors import InputError, diagnostic
from elman.nn import LinearCrossEntropy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def sharding(workers: int, timeout: timedelta) -> ModelParallelStrategy:
    """Fabric's strategy for so many processes that share one model.

    Args:
        timeout: of a wait for another process.
    """
    return ModelParallelStrategy(shard, workers, 1, timeout=timeout)


def shard(model: nn.Module, mesh: DeviceMesh) -> Any:
    """Divide a model in place, part by part.

    Weights that several parts share (a tied read-out) belong to none of them: they are gathered
    for the whole forward and backward.

    Raises:
        InputError: a parameter is a single number.
    """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            hint = "leave --shard out, or declare it [1]"
            raise InputError(diagnostic(f"{name} is a number, which cannot be divided", [], hint))
    own = mesh["data_parallel"]
    for part in parts(model):
        fully_shard(part, mesh=own)
        if isinstance(part, LinearCrossEntropy):  # validation asks for it, not for a forward
            register_fsdp_forward_method(part, "logits")
    return fully_shard(model, mesh=own)


def parts(model: nn.Module) -> list[nn.Module]:
    """The children of a model that have parameters, all of them their own."""
    children = list(model.children())
    readers: dict[Tensor, int] = {}
    for child in children:
        for parameter in child.parameters():
            readers[parameter] = readers.get(parameter, 0) + 1
    return [
        child
        for child in children
        if (held := list(child.parameters())) and all(readers[one] == 1 for one in held)
    ]


def whole(value: Tensor) -> Tensor:
    """All of a tensor that may be divided; every process must ask."""
    return value.full_tensor() if _divided(value) else value  # type: ignore[attr-defined]


def divided_as(value: Tensor, pattern: Tensor) -> Tensor:
    """This process's part of a whole tensor, if another one of its shape is divided.

    Args:
        value: the same in every process.
        pattern: a parameter.
    """
    if not _divided(pattern) or value.shape != pattern.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    value = value.to(pattern.device)
    mesh, placements = pattern.device_mesh, pattern.placements  # type: ignore[attr-defined]
    return distribute_tensor(value, mesh, placements, src_data_rank=None)


def _divided(value: Tensor) -> bool:
    if type(value) in (Tensor, nn.Parameter) or not dist.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)
