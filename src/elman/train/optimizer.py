"""The optimizers there are; a new one is one row here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import SGD, AdamW, Optimizer

Groups = list[dict[str, Any]]


def adamw(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
    """Make AdamW; it has averages of its own in place of a momentum."""
    return AdamW(groups, lr=lr, betas=(0.9, 0.99), fused=True)


def sgd(groups: Groups, lr: float, momentum: float, nesterov: bool) -> Optimizer:
    """Make stochastic gradient descent; the decay of weights is part of the gradient."""
    return SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)


OPTIMIZERS: dict[str, Callable[[Groups, float, float, bool], Optimizer]] = {
    "adamw": adamw,
    "sgd": sgd,
}
