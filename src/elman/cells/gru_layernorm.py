"""Gated recurrent unit with one layer normalisation over all its gates, as in Dreamer."""

from elman.frontend.cell import cell
from elman.ops import layer_norm, sigmoid, split, tanh


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[3H, I], R[3H, H], a[3H], g[3H], b[3H]",
    init={"a": 0, "g": 1, "b": 0},
    source="Hafner et al. 2021 (DreamerV2), arXiv:2010.02193; GRUCell of its code at 6124db4",
)
def gru_layernorm(x, h, W, R, a, g, b):
    """Gates r, n, z. Dreamer's one matrix is W next to R; a bias of -1 closes the update gate."""
    gates = g * layer_norm(W @ x + R @ h + a, eps=1e-3) + b
    r, n, z = split(gates, 3)
    n = tanh(sigmoid(r) * n)
    z = sigmoid(z - 1)
    return z * n + (1 - z) * h
