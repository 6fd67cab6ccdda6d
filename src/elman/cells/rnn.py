"""Elman's simple recurrent network."""

from elman.frontend.cell import cell
from elman.ops import tanh


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[H, I], R[H, H], b[H]",
    source="Elman 1990, doi:10.1207/s15516709cog1402_1; torch's two biases are one",
)
def rnn(x, h, W, R, b, *, activation=tanh):
    """Simple recurrent network; ``activation=relu`` for the rectified one."""
    return activation(W @ x + R @ h + b)
