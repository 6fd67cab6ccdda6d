"""Cells of the projects as formulas, where elman does not ship them."""

from __future__ import annotations

from elman.frontend.cell import cell
from elman.ops import concat, layer_norm, sigmoid, spike, split, tanh, where


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[3H, I+H], g[3H], b[3H]",
    init={"g": 1, "b": 0},
    source="Hafner, Pasukonis, Ba & Lillicrap 2023, arXiv:2301.04104v1; as in dreamerv3-torch",
)
def gru_layernorm(x, h, W, g, b):
    """A GRU of one product, layer norm over all three gates, and an update gate that opens late."""
    reset, candidate, update = split(g * layer_norm(W @ concat(x, h), eps=1e-3) + b, 3)
    candidate = tanh(sigmoid(reset) * candidate)
    update = sigmoid(update - 1)
    return update * candidate + (1 - update) * h


@cell(input="x[H]", state="s[H], m[H]", weights="V[H, H], c[H]", source="snnTorch 0.9, RLeaky")
def rleaky(x, s, m, V, c, *, beta=0.5, threshold=1.0):
    """Leaky neurons whose spikes return through a matrix; the threshold is subtracted."""
    reset = where(m > threshold, threshold, 0.0)
    m = beta * m + x + (V @ s + c) - reset
    return spike(m - threshold), m


@cell(input="x[H]", state="m[H]", output="s[H]", source="snnTorch 0.9, Leaky")
def leaky(x, m, *, beta=0.5, threshold=1.0):
    """Leaky neurons; the threshold is subtracted a step after the spike."""
    m = beta * m + x - where(m > threshold, threshold, 0.0)
    return spike(m - threshold), m
