"""Long short-term memory with layer normalisation."""

from elman.frontend.cell import cell
from elman.ops import layer_norm, sigmoid, split, tanh


@cell(
    input="x[I]",
    state="h[H], c[H]",
    weights="W[4H, I], R[4H, H], b[4H], gx[4H], gh[4H], gc[H], bc[H]",
    init={"gx": 1, "gh": 1, "gc": 1, "bc": 0},
    source="Ba, Kiros & Hinton 2016, arXiv:1607.06450v1, eqs. 20-22",
)
def lstm_layernorm(x, h, c, W, R, b, gx, gh, gc, bc):
    """LSTM whose two products and cell state are normalised over their units."""
    pre = gx * layer_norm(W @ x) + gh * layer_norm(R @ h) + b
    i, f, g, o = split(pre, 4)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(gc * layer_norm(c) + bc)
    return h, c
