"""Independently recurrent network."""

from elman.frontend.cell import cell
from elman.ops import relu


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[H, I], u[H], b[H]",
    source="Li et al. 2018, arXiv:1803.04831v3, eq. 2",
)
def indrnn(x, h, W, u, b, *, activation=relu):
    """Each unit sees only itself: the recurrent weight is a vector."""
    return activation(W @ x + u * h + b)
