"""Long short-term memory."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split, tanh


@cell(
    input="x[I]",
    state="h[H], c[H]",
    weights="W[4H, I], R[4H, H], b[4H]",
    source="Hochreiter & Schmidhuber 1997; forget gate: Gers, Schmidhuber & Cummins 2000",
)
def lstm(x, h, c, W, R, b):
    """Long short-term memory without peepholes, gates in torch's order i, f, g, o."""
    i, f, g, o = split(W @ x + R @ h + b, 4)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(c)
    return h, c
