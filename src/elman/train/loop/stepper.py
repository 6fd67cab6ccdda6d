"""One training step: forward, backward, clip, update, with the hidden state carried on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from elman.train.distributed.gradients import (
    average_gradients,
    average_tensors,
    averages_after_backward,
    gather,
    mean,
)
from elman.train.loop.config import Config
from elman.train.loop.objective import Objective, Score, evaluate
from elman.train.loop.optimizer import OPTIMIZERS
from elman.train.loop.task import Batch, predictions
from elman.tuning.decisions import sending_after_backward

MOST_VOTES = 3  # of a process in a step


@dataclass
class Stepper:
    """A model and its optimizer under way; the state is what the next step starts from.

    Attributes:
        state: carried from the last step into the next one.
        averaging: whether gradients are averaged after the backward, in one message.
        local_sgd: whether each process follows its own gradient until :meth:`average_copies`.
        votes: logical OR over all processes of their votes in the last step.
    """

    fabric: Fabric
    model: Any
    optimizer: Any
    objective: Objective
    clip: float
    averaging: bool = False
    local_sgd: bool = False
    state: Any = field(default=None)
    votes: list[bool] = field(default_factory=list)

    @property
    def plain(self) -> nn.Module:
        """The model without Fabric's wrapping."""
        return self.model.module

    def train(
        self, batch: Batch, lr: float, cast_votes: Callable[[], Sequence[bool]] = tuple
    ) -> tuple[float, float]:
        """Do one training step; where loss or gradient is not finite, it changes nothing.

        Args:
            batch: what to learn from; the state of the step before is carried into it unless it
                begins anew (truncated BPTT).
            lr: learning rate of this step.
            cast_votes: called after the forward; returns the votes of this process.

        Returns:
            The objective's loss before the update, and the gradient's norm: means over all
            processes, not finite if one of any process is not.
        """
        if batch.resets_state:
            self.state = None
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        inputs, targets = self.fabric.to_device((batch.inputs, batch.targets))
        self.optimizer.zero_grad()
        with sending_after_backward() if self.averaging else nullcontext():
            if self.objective.inside:
                loss, state = self.model(inputs, detach_state(self.state), targets)
            else:
                outputs, state = self.model(inputs, detach_state(self.state))
                loss = self.objective.loss(outputs, targets)
            votes = cast_votes()
            self.fabric.backward(loss)
        mean_loss, mean_norm = self.exchange(loss.detach(), votes)
        if math.isfinite(mean_loss) and math.isfinite(mean_norm):
            self.optimizer.step()
            self.state = detach_state(state)
        return mean_loss, mean_norm

    @torch.no_grad()
    def average_copies(self) -> None:
        """Give all processes the mean weights and moments, if each follows its own gradient (S.
        Stich, "Local SGD converges fast and communicates little", arXiv:1805.09767). A checkpoint
        has the moments of one process: as they are the same, a resumed run goes on as it would."""
        if not self.local_sgd:
            return
        values = [p for p in self.model.parameters() if p.requires_grad]
        # By name: a state that was loaded has its names in another order in each process.
        named = [(p, sorted(self.optimizer.state[p].items())) for p in values]
        moments = [
            v for p, pairs in named for _, v in pairs if getattr(v, "shape", None) == p.shape
        ]
        average_tensors([*values, *moments])

    def exchange(self, loss: Tensor, votes: Sequence[bool]) -> tuple[float, float]:
        """Average and clip gradients, and combine the votes of all processes.

        Args:
            loss []: of this process.
            votes: of this process; up to :data:`MOST_VOTES`.

        Returns:
            Loss and norm: means over all processes.
        """
        padding = [False] * (MOST_VOTES - len(votes))
        numbers = torch.cat((loss[None], loss.new_tensor([*votes, *padding])))
        if self.averaging:
            average_gradients(self.model.parameters(), numbers)
        norm = self.fabric.clip_gradients(
            self.model, self.optimizer, max_norm=self.clip, error_if_nonfinite=False
        )
        assert norm is not None, "clipping by norm returns the norm"
        numbers = torch.cat((numbers, gather(norm)[None].to(loss.dtype)))
        if self.fabric.world_size > 1 and not self.averaging:
            mean(numbers)
        mean_loss, *shares, mean_norm = numbers.tolist()
        self.votes = [share > 0 for share in shares]
        return mean_loss, mean_norm

    @torch.no_grad()
    def validate(self, batches: Iterable[Batch]) -> Score:
        """Return mean loss and score over some batches; the carried state stays as it is."""
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
    optimizer = make(groups, config.lr, config.momentum, config.nesterov)
    local_sgd = config.average_every > 1 and fabric.world_size > 1
    averaging = averages_after_backward(fabric) and not local_sgd
    prepared = fabric.setup_optimizers(optimizer)
    return Stepper(fabric, wrapped, prepared, objective, config.clip, averaging, local_sgd)


def detach_state(state: Any) -> Any:
    """Cut the state off the graph of the step before."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return state.detach()
    return tuple(part.detach() for part in state)
