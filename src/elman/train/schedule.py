"""The learning rate as a pure function of the step, so that a checkpoint need not hold it."""

from __future__ import annotations

import math
from collections.abc import Callable

LAST_SHARE = 0.02


def cosine(done: float) -> float:
    """Fall along a half cosine."""
    return LAST_SHARE + (1 - LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * done))


def linear(done: float) -> float:
    """Fall along a line."""
    return LAST_SHARE + (1 - LAST_SHARE) * (1 - done)


def constant(done: float) -> float:
    """Stay."""
    return 1.0


# By name: the share of the peak, from the share of the steps after the warm-up that are done.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
}


def learning_rate(
    step: int, steps: int, peak: float, warmup: float, schedule: str = "cosine"
) -> float:
    """Rise linearly over the first `warmup` share of all steps, then follow a schedule.

    Args:
        step: 0 … steps - 1.
        steps: number of all steps.
        peak: highest value.
        warmup: share of the steps spent rising.
        schedule: a name of SCHEDULES.
    """
    rising = math.ceil(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    return peak * SCHEDULES[schedule]((step - rising) / max(1, steps - rising))
