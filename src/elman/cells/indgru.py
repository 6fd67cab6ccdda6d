"""Gated recurrent unit whose units see themselves alone."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split, tanh


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[3H, I], u[3H], b[3H]",
    source="Li et al. 2018, arXiv:1803.04831, of a GRU as TensorFlow's IndyGRUCell has it: "
    "gates in the order r, z, n",
)
def indgru(x, h, W, u, b):
    """A GRU with vectors in the place of recurrent matrices."""
    xr, xz, xn = split(W @ x + b, 3)
    ur, uz, un = split(u, 3)
    r, z = sigmoid(xr + ur * h), sigmoid(xz + uz * h)
    return z * h + (1 - z) * tanh(xn + un * (r * h))
