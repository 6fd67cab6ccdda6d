"""Simple recurrent unit."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split


@cell(
    input="x[I]",
    state="h[H], c[H]",
    weights="W[4H, I], v[2H], b[2H]",
    source="Lei, Zhang, Wang, Dai & Artzi 2018, arXiv:1709.02755v5, eq. 1 to 4; the skip "
    "connection is projected, as where sizes of input and state differ",
)
def sru(x, h, c, W, v, b):
    """Only c feeds the recurrence, unit by unit; h is the output."""
    bf, br = split(b, 2)
    vf, vr = split(v, 2)
    u, f, r, skip = split(W @ x, 4)
    f = sigmoid(f + vf * c + bf)
    r = sigmoid(r + vr * c + br)
    c = f * c + (1 - f) * u
    return r * c + (1 - r) * skip, c
