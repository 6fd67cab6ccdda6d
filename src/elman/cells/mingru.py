"""Minimal gated recurrent unit: linear in its state."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[2H, I], b[2H]",
    source="Feng, Tung, Ahmed, Bengio & Hajimirsadeghi 2024, arXiv:2410.01201v3, section 3.1",
)
def mingru(x, h, W, b):
    """Gate and candidate see the input alone, so all steps are one linear scan."""
    z, n = split(W @ x + b, 2)
    z = sigmoid(z)
    return (1 - z) * h + z * n
