"""WKV of RWKV-4: a mean of values whose weights decay, unit by unit."""

import math
from typing import Any

from elman.frontend.cell import cell
from elman.ops import exp, maximum

BEFORE_ALL = -1e38  # the largest exponent of no steps, as the authors begin


def wkv_step(k: Any, v: Any, num: Any, den: Any, top: Any, w: Any, u: Any) -> tuple[Any, ...]:
    """One step; ``w`` is the logarithm of the decay, negative."""
    bonus = maximum(top, u + k)
    old, new = exp(top - bonus), exp(u + k - bonus)
    y = (old * num + new * v) / (old * den + new)
    later = maximum(top + w, k)
    old, new = exp(top + w - later), exp(k - later)
    return y, old * num + new * v, old * den + new, later


def _decays(log_w: Any) -> None:
    """From slow to fast, as in the authors' first layer [H]."""
    units = log_w.new_ones(len(log_w)).cumsum(0) - 1
    log_w.copy_(8 * (units / max(len(log_w) - 1, 1)) ** 0.7 - 5)


def _bonuses(u: Any) -> None:
    """Around the logarithm of 0.3, as the authors' [H]."""
    units = u.new_ones(len(u)).cumsum(0)
    u.copy_(math.log(0.3) + 0.5 * (units.remainder(3) - 1))


@cell(
    input="k[H], v[H]",
    state="num[H], den[H], top[H]",
    weights="log_w[H], u[H]",
    init={"top": BEFORE_ALL, "log_w": _decays, "u": _bonuses},
    output="y[H]",
    source="Peng et al. 2023 (RWKV-4), arXiv:2305.13048, eq. 16 in the stable form of appendix D",
)
def rwkv4(k, v, num, den, top, log_w, u):
    """Weights are exp(k), decay by exp(-w) a step, w = exp(log_w), and are exp(u + k) in their own
    step. num and den are the sums of values and of weights, divided by exp(top), the largest weight
    so far. Projections and the receptance of the published layer are added around."""
    return wkv_step(k, v, num, den, top, -exp(log_w), u)
