"""Leaky integrate-and-fire neurons."""

from elman.frontend.cell import cell
from elman.frontend.lines import refuse
from elman.ops import spike, stop_gradient

RESETS = ("subtract", "zero", "zero_before", "none")


def integrated(rest, current, m, threshold, reset_mechanism):
    """The membrane after a step: ``kept`` of m and the current, reset where m was above threshold.

    The reset passes no gradient, as in snnTorch.

    Raises:
        TraceError: there is no such reset.
    """
    if reset_mechanism not in RESETS:
        refuse(
            f"reset_mechanism must be one of {', '.join(RESETS)}, not {reset_mechanism!r}",
            'reset_mechanism="subtract"',
        )
    fired = stop_gradient(m > threshold)
    if reset_mechanism == "subtract":
        return rest + current - threshold * fired
    if reset_mechanism == "zero":
        return (rest + current) * (1 - fired)
    return (rest * (1 - fired) if reset_mechanism == "zero_before" else rest) + current


@cell(
    input="x[I]",
    state="m[H]",
    weights="W[H, I], b[H]",
    output="s[H]",
    source="Eshraghian et al. 2023, arXiv:2109.12894; snnTorch's Leaky, behind a Linear",
)
def lif(x, m, W, b, *, beta=0.9, threshold=1.0, reset_mechanism="subtract", surrogate="atan"):
    """Spikes s [H] of membranes m [H], which leak by ``beta`` and are reset a step after a spike.

    ``reset_mechanism`` is ``"subtract"`` (the threshold), ``"zero"`` (membrane and current of that
    step, as snnTorch documents it, and RLeaky and Synaptic do it), ``"zero_before"`` (the membrane
    alone, as Leaky does it in version 0.9), or ``"none"``. ``surrogate``: as of
    :func:`elman.ops.spike`.
    """
    m = integrated(beta * m, W @ x + b, m, threshold, reset_mechanism)
    return spike(m - threshold, surrogate), m
