"""Gated recurrent unit, reset gate before the recurrent product."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split, tanh


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[3H, I], R[2H, H], U[H, H], b[3H]",
    source="Cho et al. 2014, arXiv:1406.1078v3, appendix A: reset before the product",
)
def gru_before(x, h, W, R, U, b):
    """Gated recurrent unit with two dependent products per step: U reads r * h."""
    xr, xz, xn = split(W @ x + b, 3)
    hr, hz = split(R @ h, 2)
    r = sigmoid(xr + hr)
    z = sigmoid(xz + hz)
    n = tanh(xn + U @ (r * h))
    return (1 - z) * n + z * h
