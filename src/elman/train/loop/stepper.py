"""One training step: forward, backward, clip, update, with the hidden state carried on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from elman.train.distributed.gradients import (
    average_gradients,
    average_models,
    averages_after_backward,
    backward_context,
    gather_whole,
    mean,
)
from elman.train.loop.config import Config
from elman.train.loop.objective import Objective, Score, evaluate
from elman.train.loop.optimizer import OPTIMIZERS
from elman.train.loop.task import Batch, predictions

WISHES = 3  # at most, that processes tell one another in a step


@dataclass
class Stepper:
    """A model and its optimizer under way; the state is what the next step starts from.

    Attributes:
        apart: whether processes train by themselves and average their models when asked to.
        gathers: whether gradients are averaged after the backward, in one message.
        wished: what any process wished in the last step.
    """

    fabric: Fabric
    model: Any
    optimizer: Any
    objective: Objective
    clip: float
    apart: bool = False
    gathers: bool = False
    state: Any = field(default=None)
    wished: list[bool] = field(default_factory=list)

    @property
    def plain(self) -> nn.Module:
        """The model without Fabric's wrapping."""
        return self.model.module

    def train(
        self,
        batch: Batch,
        lr: float,
        sync: bool = True,
        wishes: Callable[[], Sequence[bool]] = tuple,
    ) -> tuple[float, float]:
        """Do one training step; where loss or gradient is not finite, it changes nothing.

        Args:
            batch: what to learn from; the state of the step before is carried into it unless it
                begins anew (truncated BPTT).
            lr: learning rate of this step.
            sync: whether all processes have the same model afterwards, if they train apart.
            wishes: what this process wishes, asked after the forward; `wished` has all processes'.

        Returns:
            The objective's loss before the update, and the gradient's norm: means over all
            processes, not finite if one of any process is not.
        """
        if batch.begins:
            self.state = None
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        inputs, targets = self.fabric.to_device((batch.inputs, batch.targets))
        self.optimizer.zero_grad()
        with backward_context(self.fabric, self.model, self.apart):
            if self.objective.inside:
                loss, state = self.model(inputs, detach_state(self.state), targets)
            else:
                outputs, state = self.model(inputs, detach_state(self.state))
                loss = self.objective.loss(outputs, targets)
            wished = wishes()
            self.fabric.backward(loss)
        told_loss, told_norm = self.exchange(loss.detach(), wished)
        if math.isfinite(told_loss) and math.isfinite(told_norm):
            self.optimizer.step()
            self.state = detach_state(state)
        if self.apart and sync and self.fabric.world_size > 1:
            average_models(self.model, self.optimizer)
        return told_loss, told_norm

    def exchange(self, loss: Tensor, wishes: Sequence[bool]) -> tuple[float, float]:
        """Average and clip gradients, return loss and norm, means over all processes, and note what
        any of them wishes.

        Args:
            loss []: of this process.
            wishes: of this process; up to :data:`WISHES`.
        """
        votes = [float(wish) for wish in wishes] + [0.0] * (WISHES - len(wishes))
        numbers = torch.cat((loss[None], loss.new_tensor(votes)))
        if self.gathers:
            average_gradients(self.model.parameters(), numbers)
        norm = self.fabric.clip_gradients(
            self.model, self.optimizer, max_norm=self.clip, error_if_nonfinite=False
        )
        assert norm is not None, "clipping by norm returns the norm"
        numbers = torch.cat((numbers, gather_whole(norm)[None].to(loss.dtype)))
        if self.fabric.world_size > 1 and not self.gathers:
            mean(numbers)
        told_loss, *votes, told_norm = numbers.tolist()
        self.wished = [vote > 0 for vote in votes]
        return told_loss, told_norm

    @torch.no_grad()
    def validate(self, batches: Iterable[Batch]) -> Score:
        """Return mean loss and score over some batches; the own state stays as it is."""
        self.model.eval()
        score = evaluate(self.objective, predictions(self.model, batches))
        self.model.train()
        return score


def make_stepper(fabric: Fabric, model: nn.Module, config: Config, objective: Objective) -> Stepper:
    """Give a model to Fabric (device, precision, data-parallel launch) with its optimizer.

    The optimizer comes second: where the model is divided, its parameters are new ones.
    """
    wrapped = fabric.setup_module(model)
    decayed = [p for p in wrapped.parameters() if p.dim() > 1]
    undecayed = [p for p in wrapped.parameters() if p.dim() <= 1]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": undecayed, "weight_decay": 0.0},
    ]
    make = OPTIMIZERS[config.optimizer]
    optimizer = make(groups, config.peak_lr, config.used_momentum, config.nesterov)
    stepping = fabric.setup_optimizers(optimizer)
    apart = config.sync_every > 1
    gathers = averages_after_backward(fabric) and not apart
    return Stepper(fabric, wrapped, stepping, objective, config.clip, apart, gathers)


def detach_state(state: Any) -> Any:
    """Cut the state off the graph of the step before."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return state.detach()
    return tuple(part.detach() for part in state)
