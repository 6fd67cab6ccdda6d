"""LSTM with exponential gates and a stabiliser (the sLSTM of xLSTM)."""

from elman.frontend.cell import cell
from elman.ops import exp, maximum, sigmoid, softplus, split, tanh


@cell(
    input="x[I]",
    state="h[H], c[H], n[H], m[H]",
    weights="W[4H, I], R[4H, H], b[4H]",
    source="Beck et al. 2024 (xLSTM), arXiv:2405.04517v2, eq. 8 to 17, forget gate sigmoid",
)
def slstm(x, h, c, n, m, W, R, b):
    """n normalises c; m is the largest exponent so far, and cancels out of h."""
    i, f, g, o = split(W @ x + R @ h + b, 4)
    kept = m - softplus(-f)
    top = maximum(kept, i)
    i, f = exp(i - top), exp(kept - top)
    c = f * c + i * tanh(g)
    n = f * n + i
    return sigmoid(o) * (c / n), c, n, top
