"""Leaky integrate-and-fire neurons with a synaptic current."""

from elman.cells.lif import integrated
from elman.frontend.cell import cell
from elman.ops import spike


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
):
    """A current i [H] that decays by ``alpha`` drives membranes m [H]; reset as of ``lif``."""
    i = alpha * i + W @ x + b
    m = integrated(beta * m, i, m, threshold, reset_mechanism)
    return spike(m - threshold, surrogate), i, m
