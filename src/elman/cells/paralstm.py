"""Long short-term memory whose recurrent weights are vectors; one gate keeps and writes."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split, tanh


@cell(
    input="x[I]",
    state="h[H], c[H]",
    weights="W[3H, I], u[3H], p[2H], b[3H]",
    source="Danieli et al. 2025 (ParaRNN), arXiv:2510.21450v1: its diagonal LSTM",
)
def paralstm(x, h, c, W, u, p, b):
    """Coupled gates, peepholes, diagonal recurrence: its Jacobian is a 2 x 2 block per unit."""
    uf, uo, ug = split(u, 3)
    pf, po = split(p, 2)
    f, o, g = split(W @ x + b, 3)
    f = sigmoid(f + uf * h + pf * c)
    c = f * c + (1 - f) * tanh(g + ug * h)
    o = sigmoid(o + uo * h + po * c)
    return o * tanh(c), c
