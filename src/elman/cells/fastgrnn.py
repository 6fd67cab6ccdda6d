"""Fast gated recurrent network."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split, tanh


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[H, I], U[H, H], b[2H], zeta, nu",
    init={"zeta": 1.0, "nu": -4.0, "b": 1.0},
    source="Kusupati et al. 2018, arXiv:1901.02358; zeta and nu through a sigmoid, as in EdgeML",
)
def fastgrnn(x, h, W, U, b, zeta, nu):
    """Gate and candidate share both matrices; b [2H] has the gate's bias, then the candidate's.

    Full rank; of low rank W is ``W1 @ (W2 @ x)`` in a cell of your own.
    """
    pre = W @ x + U @ h
    gate, update = split(b, 2)
    z = sigmoid(pre + gate)
    return z * h + (sigmoid(zeta) * (1 - z) + sigmoid(nu)) * tanh(pre + update)
