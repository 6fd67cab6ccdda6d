"""Gated recurrent unit whose recurrent weights are vectors."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split, tanh


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[3H, I], u[3H], b[3H]",
    source="Danieli et al. 2025 (ParaRNN), arXiv:2510.21450v1: its diagonal GRU",
)
def paragru(x, h, W, u, b):
    """GRU with diagonal recurrent matrices: its Jacobian is diagonal."""
    ur, uz, un = split(u, 3)
    r, z, n = split(W @ x + b, 3)
    r = sigmoid(r + ur * h)
    z = sigmoid(z + uz * h)
    n = tanh(n + un * (r * h))
    return (1 - z) * h + z * n
