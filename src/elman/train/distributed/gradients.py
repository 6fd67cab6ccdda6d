"""Several processes, one model: averages of gradients and numbers, and models in shards.

- copies (`Workers`): gradients are averaged in each step, or weights after some steps;
- shards: each process holds its rows of every parameter (torch's FSDP2, ``fully_shard``). A part of
  the model - embedding, recurrent stack, read-out - has its whole weights in a process from its
  forward to the end of it and again for its backward; then the sum of its gradients is divided.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn

from elman.errors import InputError
from elman.nn import LinearCrossEntropyLoss


def mean(values: Tensor) -> Tensor:
    """Replace values by their means over all processes: one message."""
    dist.all_reduce(values)
    return values.div_(dist.get_world_size())


@torch.no_grad()
def average_tensors(tensors: Sequence[Tensor]) -> None:
    """Replace tensors by their means over all processes: one message for each dtype."""
    for dtype in {tensor.dtype: None for tensor in tensors}:
        parts = [tensor for tensor in tensors if tensor.dtype is dtype]
        message = mean(torch.cat([part.flatten() for part in parts]))
        pieces = message.split([part.numel() for part in parts])
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


class Workers(DDPStrategy):
    """Processes with a copy of the model each.

    DistributedDataParallel sends gradients while the backward goes on. Processes of one machine
    that compute on its cores have no core left that could: there it only costs, and all gradients
    are averaged in one message after the backward (`average_gradients`).

    Args:
        local_sgd: whether each copy follows its own gradient, so that none is sent.
        options: of the strategy.
    """

    def __init__(self, *, local_sgd: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._local_sgd = local_sgd

    @property
    def shares_cores(self) -> bool:
        """Whether processes share the cores of one machine."""
        return self.root_device.type == "cpu" and self.num_nodes == 1

    def setup_module(self, module: nn.Module) -> Any:
        """Wrap a model where that hides messages; all processes have the first one's weights."""
        if not (self.shares_cores or self._local_sgd):
            return super().setup_module(module)
        with torch.no_grad():
            for value in (*module.parameters(), *module.buffers()):
                dist.broadcast(value, src=0)
        return module


def averages_after_backward(fabric: Fabric) -> bool:
    """Whether gradients are averaged after the backward, by `average_gradients`."""
    strategy = fabric.strategy
    return fabric.world_size > 1 and isinstance(strategy, Workers) and strategy.shares_cores


def shard(model: nn.Module, mesh: Any) -> Any:
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
            raise InputError(f"{name} is a number, which cannot be divided", hint)
    submesh = mesh["data_parallel"]
    for part in parts(model):
        fully_shard(part, mesh=submesh)
        if isinstance(part, LinearCrossEntropyLoss):  # validation asks for it, not for a forward
            register_fsdp_forward_method(part, "logits")
    return fully_shard(model, mesh=submesh)


def parts(model: nn.Module) -> list[nn.Module]:
    """The children of a model that have parameters, all of them their own."""
    children = list(model.children())
    readers: dict[Tensor, int] = {}
    for child in children:
        for weight in child.parameters():
            readers[weight] = readers.get(weight, 0) + 1
    return [
        child
        for child in children
        if (weights := list(child.parameters())) and all(readers[weight] == 1 for weight in weights)
    ]


def gather(value: Tensor) -> Tensor:
    """Gather a tensor that may be divided among processes (collective)."""
    return value.full_tensor() if _is_divided(value) else value  # type: ignore[attr-defined]


def divide_as(value: Tensor, pattern: Tensor) -> Tensor:
    """Take this process's part of a whole tensor, if a parameter of its shape is divided.

    Args:
        value: the same in every process.
        pattern: a parameter.
    """
    if not _is_divided(pattern) or value.shape != pattern.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    value = value.to(pattern.device)
    mesh, placements = pattern.device_mesh, pattern.placements  # type: ignore[attr-defined]
    return distribute_tensor(value, mesh, placements, src_data_rank=None)


def _is_divided(value: Tensor) -> bool:
    if type(value) in (Tensor, nn.Parameter) or not dist.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(value, DTensor)
