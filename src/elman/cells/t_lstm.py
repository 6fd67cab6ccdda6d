"""Time-aware LSTM."""

from math import e

from elman.frontend.cell import cell
from elman.ops import log, sigmoid, split, tanh


def slow(gap):
    """1 / log(e + gap): for long gaps."""
    return 1 / log(e + gap)


def fast(gap):
    """1 / gap: for short gaps."""
    return 1 / gap


@cell(
    input="x[I], gap",
    state="h[H], c[H]",
    weights="W[4H, I], R[4H, H], b[4H], D[H, H], d[H]",
    source="Baytas, Xiao, Zhang, Wang, Jain & Zhou 2017 (KDD), doi:10.1145/3097983.3097997",
)
def t_lstm(x, gap, h, c, W, R, b, D, d, *, decay=slow):
    """The short-term part of the memory is discounted by the time since the last step.

    ``gap`` is one number per sample; ``decay`` is ``slow``, ``fast``, or a function of gap. Gates
    in torch's order i, f, g, o.
    """
    short = tanh(D @ c + d)
    c = c - short + short * decay(gap)
    i, f, g, o = split(W @ x + R @ h + b, 4)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c
