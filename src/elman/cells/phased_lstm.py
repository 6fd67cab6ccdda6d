"""Phased LSTM: a long short-term memory with a rhythmic time gate."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split, tanh, where


@cell(
    input="x[I], t",
    state="h[H], c[H]",
    weights="W[4H, I], R[4H, H], b[4H], tau[H], shift[H], ratio[H]",
    init={
        "tau": lambda tau: tau.uniform_(0.0, 6.0).exp_(),
        "shift": lambda shift: shift.uniform_(0.0, 400.0),
        "ratio": 0.05,
    },
    source="Neil, Pfeiffer & Liu 2016, arXiv:1610.09513, eqs. 6-10, without peepholes",
)
def phased_lstm(x, t, h, c, W, R, b, tau, shift, ratio, *, leak=0.001):
    """States change while a gate of period ``tau`` is open, which it is for ``ratio`` of the time.

    ``t`` is the time of the step (one number per sample), in the unit of tau and shift; gates in
    torch's order i, f, g, o. ``leak`` is 0.001 in training, 0 after it in the paper.
    """
    phase = (t - shift) % tau / tau
    rising = 2 * phase / ratio
    k = where(phase < 0.5 * ratio, rising, where(phase < ratio, 2 - rising, leak * phase))
    i, f, g, o = split(W @ x + R @ h + b, 4)
    new = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return k * (sigmoid(o) * tanh(new)) + (1 - k) * h, k * new + (1 - k) * c
