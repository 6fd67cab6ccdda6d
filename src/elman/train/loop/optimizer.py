"""Optimizers, and the learning rate as a function of the step, so that no checkpoint holds it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
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


def optimizer_state(name: str, momentum: float, nesterov: bool) -> dict[str, Any]:
    """State of an optimizer for a parameter [1], by name: tensors of its shape, or numbers."""
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = OPTIMIZERS[name]([{"params": [weight]}], 1.0, momentum, nesterov)
    optimizer.step()
    return optimizer.state[weight]


LAST_SHARE = 0.02


def cosine(progress: float) -> float:
    """Fall along a half cosine."""
    return LAST_SHARE + (1 - LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float) -> float:
    """Fall along a line."""
    return LAST_SHARE + (1 - LAST_SHARE) * (1 - progress)


def constant(progress: float) -> float:
    """Constant."""
    return 1.0


# By name: the share of the peak, from the share of the steps after the warm-up that are done.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
}

STAIRS = "stairs:4/13:2"  # as one is spelled
_STAIRS = re.compile(r"stairs:(\d+)/([1-9]\d*):(\d+(?:\.\d+)?)")
_ROUNDING = 1e-9  # of a share, times the number of stages


def stairs(constant_stages: int, stages: int, divisor: float) -> Callable[[float], float]:
    """Constant for some of so many equal stages, then divided at the beginning of each further
    one."""

    def share(progress: float) -> float:
        stage = math.floor(progress * stages * (1 + _ROUNDING))
        return divisor ** -max(0, min(stage, stages - 1) + 1 - constant_stages)

    return share


@cache
def find_schedule(name: str) -> Callable[[float], float] | None:
    """Find a schedule: a name of SCHEDULES, or stairs:HELD/STAGES:DIVISOR; None for others."""
    if (match := _STAIRS.fullmatch(name)) and float(match[3]) > 0:
        return stairs(int(match[1]), int(match[2]), float(match[3]))
    return SCHEDULES.get(name)


def learning_rate(
    step: int, steps: int, peak: float, warmup: float, schedule: str = "cosine"
) -> float:
    """Rise linearly over the first `warmup` share of all steps, then follow a schedule.

    Args:
        step: 0 … steps - 1.
        steps: number of all steps.
        peak: highest value.
        warmup: share of the steps spent rising.
        schedule: as :func:`find_schedule` knows it.
    """
    rising = math.ceil(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    share = find_schedule(schedule)
    assert share is not None, "configurations name schedules that there are"
    return peak * share((step - rising) / max(1, steps - rising))
