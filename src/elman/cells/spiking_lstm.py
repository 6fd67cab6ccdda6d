"""Long short-term memory whose output is spikes (snnTorch's SLSTM)."""

from elman.cells.lif import check_reset, reset_where
from elman.cells.lstm import lstm
from elman.frontend.cell import cell
from elman.ops import spike, stop_gradient


@cell(
    input="x[I]",
    state="c[H], h[H]",
    weights="W[4H, I], R[4H, H], b[4H]",
    output="s[H]",
    source="snnTorch's SLSTM (1.0.0, _neurons/slstm.py), of Eshraghian et al. 2023, "
    "arXiv:2109.12894; torch's two biases are one",
)
def spiking_lstm(x, c, h, W, R, b, *, threshold=1.0, reset_mechanism="none", surrogate="atan"):
    """Spikes s [H] of an LSTM's h [H], snnTorch's ``mem``; c is its ``syn``.

    |h| < 1, so a threshold of 1 is never met: take a lower one. An h above threshold resets the
    next one, as of ``lif``, and c never. snnTorch sets both states to zero before each step unless
    input and hidden size are equal, and so neither remembers nor resets; this cell does both.

    Raises:
        TraceError: there is no such reset.
    """
    check_reset(reset_mechanism)
    fired = stop_gradient(h > threshold)
    h, c = lstm(x, h, c, W, R, b)
    h = reset_where(fired, h, threshold, reset_mechanism)
    return spike(h - threshold, surrogate), c, h
