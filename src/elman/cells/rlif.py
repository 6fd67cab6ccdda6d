"""Leaky integrate-and-fire neurons, connected."""

from elman.cells.lif import integrated
from elman.frontend.cell import cell
from elman.ops import spike


@cell(
    input="x[I]",
    state="s[H], m[H]",
    weights="W[H, I], R[H, H], b[H], c[H]",
    source="Eshraghian et al. 2023, arXiv:2109.12894; snnTorch's RLeaky, behind a Linear",
)
def rlif(
    x, s, m, W, R, b, c, *, beta=0.9, threshold=1.0, reset_mechanism="subtract", surrogate="atan"
):
    """Spikes s [H] feed back through R and c; membranes m [H] leak and are reset as of ``lif``."""
    m = integrated(beta * m, W @ x + b + R @ s + c, m, threshold, reset_mechanism)
    return spike(m - threshold, surrogate), m
