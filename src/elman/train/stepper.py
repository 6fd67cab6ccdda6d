"""One training step: forward, backward, clip, update, with the hidden state carried on."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW

from elman.train.config import Config
from elman.train.stream import Stream


@dataclass
class Stepper:
    """A model and its optimizer under way; the state is what the next step starts from."""

    fabric: Fabric
    model: Any
    optimizer: Any
    clip: float
    state: Any = field(default=None)

    @property
    def plain(self) -> nn.Module:
        """The model without Fabric's wrapping."""
        return self.model.module

    def train(self, inputs: Tensor, targets: Tensor, lr: float) -> tuple[float, float]:
        """Do one step of truncated BPTT.

        Args:
            inputs [T, B], targets [T, B]: characters, and the character after each.
            lr: learning rate of this step.

        Returns:
            The loss (bits per character) before the update, over all processes, and the
            gradient's norm.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        inputs, targets = self.fabric.to_device((inputs, targets))
        self.optimizer.zero_grad()
        logits, state = self.model(inputs, detached(self.state))
        loss = cross_entropy(logits, targets)
        self.fabric.backward(loss)
        norm = self.fabric.clip_gradients(
            self.model, self.optimizer, max_norm=self.clip, error_if_nonfinite=False
        )
        self.optimizer.step()
        self.state = detached(state)
        if self.fabric.world_size > 1:
            mean = self.fabric.all_reduce(loss.detach(), reduce_op="mean")
            assert isinstance(mean, Tensor), "the mean of a tensor is one"
            loss = mean
        assert norm is not None, "clipping by norm returns the norm"
        return loss.item() / math.log(2), norm.item()

    @torch.no_grad()
    def validate(self, stream: Stream) -> float:
        """Return the bits per character over a whole stream, starting from no state."""
        self.model.eval()
        state, total = None, 0.0
        for k in range(stream.segments):
            inputs, targets = self.fabric.to_device(stream.segment(k))
            logits, state = self.model(inputs, state)
            total += cross_entropy(logits, targets).item()
        self.model.train()
        return total / stream.segments / math.log(2)


def make_stepper(fabric: Fabric, model: nn.Module, config: Config) -> Stepper:
    """Give a model to Fabric (device, precision, data-parallel launch) with AdamW."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = AdamW(groups, lr=config.lr, betas=(0.9, 0.99), fused=True)
    wrapped, stepping = fabric.setup(model, optimizer)
    return Stepper(fabric, wrapped, stepping, config.clip)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over all characters of -ln P(target), [] from [T, B, V] and [T, B]."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def detached(state: Any) -> Any:
    """Cut the state off the graph of the step before."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return state.detach()
    return tuple(part.detach() for part in state)
