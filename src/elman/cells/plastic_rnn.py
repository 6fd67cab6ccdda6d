"""RNN whose synapses have a trained plasticity: each remembers how its two units went together."""

from elman.frontend.cell import cell
from elman.ops import outer, tanh


@cell(
    input="x[I]",
    state="h[H], trace[H, H]",
    weights="W[H, I], R[H, H], alpha[H, H], b[H], eta",
    init={"alpha": 0.01, "eta": 0.01},
    source="Miconi, Clune & Stanley 2018, arXiv:1804.02464v3, eq. 1 and 2, with inputs and a bias",
)
def plastic_rnn(x, h, trace, W, R, alpha, b, eta):
    """A synapse's weight is R plus alpha times its Hebbian trace, which decays at the rate eta."""
    new = tanh(W @ x + R @ h + (alpha * trace) @ h + b)
    return new, (1 - eta) * trace + eta * outer(new, h)
