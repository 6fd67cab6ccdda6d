"""Entity-aware LSTM: what a sequence is about decides what enters its cell state."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split, tanh


@cell(
    input="x[I]",
    static="s[S]",
    state="h[H], c[H]",
    weights="V[H, S], d[H], W[3H, I], R[3H, H], b[3H]",
    source="Kratzert et al. 2019, doi:10.5194/hess-23-5089-2019; gates in the order f, o, g of the "
    "authors' code (NeuralHydrology at 06d1307, modelzoo/ealstm.py)",
)
def ealstm(x, s, h, c, V, d, W, R, b):
    """LSTM whose input gate is a function of static inputs, as of a catchment's attributes."""
    i = sigmoid(V @ s + d)
    f, o, g = split(W @ x + R @ h + b, 3)
    c = sigmoid(f) * c + i * tanh(g)
    h = sigmoid(o) * tanh(c)
    return h, c
