"""Long short-term memory with peephole connections."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split, tanh


@cell(
    input="x[I]",
    state="h[H], c[H]",
    weights="W[4H, I], R[4H, H], b[4H], p[3H]",
    source="Gers, Schraudolph & Schmidhuber 2002, JMLR 3: the output gate sees the new cell state",
)
def lstm_peephole(x, h, c, W, R, b, p):
    """LSTM whose gates also see the cell state through the vector weights p (for i, f, o)."""
    pi, pf, po = split(p, 3)
    i, f, g, o = split(W @ x + R @ h + b, 4)
    i = sigmoid(i + pi * c)
    f = sigmoid(f + pf * c)
    c = f * c + i * tanh(g)
    o = sigmoid(o + po * c)
    return o * tanh(c), c
