"""Mass-conserving LSTM: cells exchange mass, take in what comes and give off a share of theirs."""

from elman.frontend.cell import cell
from elman.ops import concat, outer, sigmoid, softmax, split, sum, where


@cell(
    input="a[I], m",
    state="c[H]",
    output="h[H]",
    weights="W[4H, I+H], b[4H], B[H, H]",
    init={"B": 1.0},
    source="Hoedt et al. 2021 (MC-LSTM), arXiv:2101.05186, with the redistribution `outer` of the "
    "authors' code",
)
def mc_lstm(a, m, c, W, b, B):
    """``m`` is the mass that comes in, ``a`` what gates depend on, beside the cells' shares of the
    mass. Row i of the redistribution says where the mass of cell i goes. Output and next state
    together have the mass of the state and the input."""
    mass = sum(c)
    shares = c / where(mass == 0, 1.0, mass)
    i, o, source, target = split(W @ concat(a, shares) + b, 4)
    new = softmax(B * outer(source, target), axis=1).T @ c + m * softmax(i)
    h = sigmoid(o) * new
    return h, new - h
