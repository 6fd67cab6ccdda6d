"""The learning rate as a pure function of the step, so that a checkpoint need not hold it."""

from __future__ import annotations

import math

LAST_SHARE = 0.02


def learning_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """Rise linearly over the first `warmup` share of all steps, then fall along a half cosine.

    Args:
        step: 0 … steps - 1.
        steps: number of all steps.
        peak: highest value.
        warmup: share of the steps spent rising.
    """
    rising = math.ceil(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    done = (step - rising) / max(1, steps - rising)
    return peak * (LAST_SHARE + (1 - LAST_SHARE) * 0.5 * (1 + math.cos(math.pi * done)))
