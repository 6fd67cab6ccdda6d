"""Long short-term memory with layer normalisation and zoneout."""

from __future__ import annotations

from elman.cells.lstm_layernorm import lstm_layernorm
from elman.frontend.cell import cell
from elman.ops import zoneout


@cell(
    input="x[I]",
    state="h[H], c[H]",
    weights="W[4H, I], R[4H, H], b[4H], gx[4H], gh[4H], gc[H], bc[H]",
    init={"gx": 1, "gh": 1, "gc": 1, "bc": 0},
    source="Krueger et al. 2017, arXiv:1606.01305v4, eqs. 4-5, on Ba, Kiros & Hinton 2016, "
    "arXiv:1607.06450v1, eqs. 20-22; with hold_c=0 haste 0.4.0's LayerNormLSTM, whose gates are "
    "in the order i, g, f, o",
)
def zoneout_lstm_layernorm(x, h, c, W, R, b, gx, gh, gc, bc, *, hold_h=0.05, hold_c=0.0):
    """Layer-norm LSTM whose units keep their old h, and c, with a probability of their own."""
    new_h, new_c = lstm_layernorm(x, h, c, W, R, b, gx, gh, gc, bc)
    return zoneout(new_h, h, hold_h), zoneout(new_c, c, hold_c)
