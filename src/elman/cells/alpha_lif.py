"""Leaky integrate-and-fire neurons whose membranes follow an alpha function."""

from math import log

from elman.cells.lif import check_reset
from elman.frontend.cell import cell
from elman.frontend.lines import refuse
from elman.ops import spike, stop_gradient


@cell(
    input="x[I]",
    state="e[H], i[H], m[H]",
    weights="W[H, I], b[H]",
    output="s[H]",
    source="Eshraghian et al. 2023, arXiv:2109.12894; snnTorch's Alpha (1.0.0, _neurons/alpha.py), "
    "behind a Linear",
)
def alpha_lif(
    x,
    e,
    i,
    m,
    W,
    b,
    *,
    alpha=0.9,
    beta=0.8,
    threshold=1.0,
    reset_mechanism="zero",
    surrogate="atan",
):
    """Excitation e [H] decays by ``alpha``, inhibition i [H] faster, by ``beta``; the membrane m
    [H] is their sum times log(alpha) / (log(beta) - log(alpha)) + 1.

    That factor is of snnTorch's code; its documentation divides by log(beta) alone. A membrane
    above threshold resets the next step without a gradient: to ``"zero"`` all three; by
    ``"subtract"`` e loses the threshold, i is 0, and m gains the i of the step before; ``"none"``.

    Raises:
        TraceError: there is no such reset, or not 0 < beta < alpha <= 1.
    """
    check_reset(reset_mechanism)
    if not 0 < beta < alpha <= 1:
        refuse(f"alpha_lif has 0 < beta < alpha <= 1, not {beta} and {alpha}", "alpha=0.9")
    fired, before, current = stop_gradient(m > threshold), i, W @ x + b
    e, i = alpha * e + current, beta * i - current
    m = (log(alpha) / (log(beta) - log(alpha)) + 1) * (e + i)
    if reset_mechanism == "subtract":
        e, i, m = e - threshold * fired, i * (1 - fired), m + before * fired
    elif reset_mechanism == "zero":
        e, i, m = e * (1 - fired), i * (1 - fired), m * (1 - fired)
    return spike(m - threshold, surrogate), e, i, m
