"""Light gated recurrent unit."""

from elman.frontend.cell import cell
from elman.ops import relu, sigmoid, split


@cell(
    input="a[2H]",
    state="h[H]",
    weights="U[2H, H]",
    init={"U": "orthogonal"},
    source="Ravanelli, Brakel, Omologo & Bengio 2018, arXiv:1803.10225",
)
def ligru(a, h, U, *, activation=relu):
    """No reset gate, a ReLU, and the input projected and batch-normalised by the caller.

    ``a`` [2H] is BN(W x), outside of the recurrence: ``net(norm(linear(x)))``. Its halves, and
    those of U, are candidate and update gate, as in SpeechBrain.
    """
    candidate, z = split(a + U @ h, 2)
    z = sigmoid(z)
    return z * h + (1 - z) * activation(candidate)
