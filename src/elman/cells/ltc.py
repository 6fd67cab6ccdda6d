"""Liquid time-constant network: neurons as leaky capacitors, synapses with a state of their own."""

from typing import Any

from elman.frontend.cell import cell
from elman.ops import rows, sigmoid, softplus, sum


def _uniform(low: float, high: float) -> Any:
    """An initial value: each weight is drawn from U(low, high)."""
    return lambda weight: weight.uniform_(low, high)


def _polarities(erev: Any) -> None:
    """Each synapse excites or inhibits: 1 or -1."""
    erev.random_(0, 2).mul_(2).sub_(1)


def _unchanged(weight: Any) -> Any:
    return weight


@cell(
    input="x[I], dt",
    state="v[H]",
    weights="mu[H, H], sigma[H, H], w[H, H], erev[H, H], mu_x[I, H], sigma_x[I, H], w_x[I, H], "
    "erev_x[I, H], cm[H], gleak[H], vleak[H]",
    constants="mask[H, H], mask_x[I, H]",
    init={
        "mask": 1.0,
        "mask_x": 1.0,
        **dict.fromkeys(("mu", "mu_x"), _uniform(0.3, 0.8)),
        **dict.fromkeys(("sigma", "sigma_x"), _uniform(3, 8)),
        **dict.fromkeys(("w", "w_x", "gleak"), _uniform(0.001, 1)),
        **dict.fromkeys(("erev", "erev_x"), _polarities),
        "cm": _uniform(0.4, 0.6),
        "vleak": _uniform(-0.2, 0.2),
    },
    source="Hasani et al. 2021 (LTC), arXiv:2006.04439; as LTCCell of ncps 1.0.1; wired (NCP): "
    "Lechner et al. 2020, doi:10.1038/s42256-020-00237-3",
)
def ltc(
    x,
    dt,
    v,
    mu,
    sigma,
    w,
    erev,
    mu_x,
    sigma_x,
    w_x,
    erev_x,
    cm,
    gleak,
    vleak,
    mask,
    mask_x,
    *,
    unfolds=6,
    epsilon=1e-8,
    implicit=True,
):
    """``dt`` is the time since the last step; ``unfolds`` steps of a semi-implicit solver. Synapses
    are [source, target]; ``mask`` and ``mask_x`` are 1 where there is one, as everywhere by
    default: the wiring of ncps' NCP and AutoNCP.

    w, w_x, cm and gleak are positive by softplus; with ``implicit=False`` they are themselves, as
    where ncps' ``implicit_param_constraints`` is false, and whoever trains keeps them at 0 or
    above. ncps scales inputs and outputs outside.
    """
    positive = softplus if implicit else _unchanged
    w, leak, rate = mask * positive(w), positive(gleak), positive(cm) / (dt / unfolds)
    sensed = mask_x * positive(w_x) * sigmoid(sigma_x * (rows(x) - mu_x))
    current, conductance = sum(sensed * erev_x, axis=0), sum(sensed, axis=0)
    for _ in range(unfolds):
        active = w * sigmoid(sigma * (rows(v) - mu))
        above = rate * v + leak * vleak + sum(active * erev, axis=0) + current
        v = above / (rate + leak + sum(active, axis=0) + conductance + epsilon)
    return v
