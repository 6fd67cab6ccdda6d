"""Leaky integrate-and-fire neurons, connected."""

from elman.cells.lif import fired_late, integrated
from elman.frontend.cell import cell


@cell(
    input="x[I]",
    state="s[H], m[H]",
    weights="W[H, I], R[H, H], b[H], c[H]",
    source="Eshraghian et al. 2023, arXiv:2109.12894; snnTorch's RLeaky, behind a Linear",
)
def rlif(
    x,
    s,
    m,
    W,
    R,
    b,
    c,
    *,
    beta=0.9,
    threshold=1.0,
    reset_mechanism="subtract",
    surrogate="atan",
    reset_delay=True,
):
    """Spikes s [H] feed back through R and c; membranes m [H] leak and are reset as of ``lif``."""
    current = W @ x + b + R @ s + c
    before, m = m, integrated(beta * m, current, m, threshold, reset_mechanism)
    return fired_late(m, before, threshold, reset_mechanism, surrogate, reset_delay)
