"""Processes with a copy of the model each: when their gradients are averaged."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import nn

from elman.tuning.ranks import sending_after_backward


class Workers(DDPStrategy):
    """Processes with a copy of the model each.

    DistributedDataParallel sends gradients while the backward goes on. Processes of one machine
    that compute on its cores have no core left that could: there it only costs, and all gradients
    are averaged in one message after the backward (`averaging.average_gradients`).
    """

    @property
    def at_once(self) -> bool:
        """Whether processes share the cores of one machine."""
        return self.root_device.type == "cpu" and self.num_nodes == 1

    def setup_module(self, module: nn.Module) -> Any:
        """Wrap a model where that hides messages; all processes have the first one's weights."""
        if not self.at_once:
            return super().setup_module(module)
        with torch.no_grad():
            for value in (*module.parameters(), *module.buffers()):
                dist.broadcast(value, src=0)
        return module


def at_once(fabric: Fabric) -> bool:
    """Whether gradients are averaged after the backward, by `averaging.average_gradients`."""
    strategy = fabric.strategy
    return fabric.world_size > 1 and isinstance(strategy, Workers) and strategy.at_once


def backward_of(fabric: Fabric, model: Any, alone: bool) -> AbstractContextManager[None]:
    """Where forward and backward of a step run: gradients are sent meanwhile where that hides it,
    unless they stay in this process, ``alone``."""
    if at_once(fabric):
        return sending_after_backward()
    if not alone or fabric.world_size == 1:
        return nullcontext()
    return fabric.no_backward_sync(model)
