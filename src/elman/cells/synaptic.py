"""Leaky integrate-and-fire neurons with a synaptic current."""

from elman.cells.lif import fired_late, integrated
from elman.frontend.cell import cell


@cell(
    input="x[I]",
    state="i[H], m[H]",
    weights="W[H, I], b[H]",
    output="s[H]",
    source="Eshraghian et al. 2023, arXiv:2109.12894; snnTorch's Synaptic, behind a Linear",
)
def synaptic(
    x,
    i,
    m,
    W,
    b,
    *,
    alpha=0.9,
    beta=0.8,
    threshold=1.0,
    reset_mechanism="subtract",
    surrogate="atan",
    reset_delay=True,
):
    """A current i [H] that decays by ``alpha`` drives membranes m [H]; reset as of ``lif``.

    No reset reaches i, as in snnTorch's code.
    """
    i = alpha * i + W @ x + b
    before, m = m, integrated(beta * m, i, m, threshold, reset_mechanism)
    s, m = fired_late(m, before, threshold, reset_mechanism, surrogate, reset_delay)
    return s, i, m
