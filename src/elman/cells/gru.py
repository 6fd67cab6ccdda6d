"""Gated recurrent unit, reset gate after the recurrent product."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split, tanh


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[3H, I], R[3H, H], b[3H], c[3H]",
    source="Cho et al. 2014, arXiv:1406.1078v1; as in cuDNN and torch: reset after the product",
)
def gru(x, h, W, R, b, c):
    """Gated recurrent unit, gates in torch's order r, z, n."""
    xr, xz, xn = split(W @ x + b, 3)
    hr, hz, hn = split(R @ h + c, 3)
    r = sigmoid(xr + hr)
    z = sigmoid(xz + hz)
    n = tanh(xn + r * hn)
    return (1 - z) * n + z * h
