"""The optimizers there are; a new one is one row here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

Groups = list[dict[str, Any]]


def adamw(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
    """Make AdamW; it has averages of its own in place of a momentum."""
    return AdamW(groups, lr=lr, betas=(0.9, 0.99), fused=True)


def sgd(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
    """Make stochastic gradient descent; the decay of weights is part of the gradient."""
    return SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)


def alike(weight: Tensor, group: dict[str, Any]) -> Tensor:
    """What is remembered of each number of a weight."""
    return weight


def momentum(weight: Tensor, group: dict[str, Any]) -> Tensor | None:
    """The same, where there is a momentum."""
    return weight if group["momentum"] else None


def count(weight: Tensor, group: dict[str, Any]) -> Tensor:
    """One number for the whole weight."""
    return torch.zeros((), dtype=torch.float32)


MEMORY: dict[type[Optimizer], dict[str, Callable[[Tensor, dict[str, Any]], Tensor | None]]] = {
    # what each remembers of a weight: a tensor of the same form, or none
    AdamW: {"step": count, "exp_avg": alike, "exp_avg_sq": alike},
    SGD: {"momentum_buffer": momentum},
}
OPTIMIZERS: dict[str, Callable[[Groups, float, float, bool], Optimizer]] = {
    "adamw": adamw,
    "sgd": sgd,
}
