"""torch's layers as cells with torch's weights: two biases, or none."""

from __future__ import annotations

from elman import cells
from elman.frontend.cell import Cell, cell
from elman.ops import relu


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H], d[H]")
def rnn_tanh(x, h, W, R, b, d):
    """torch.nn.RNN."""
    return cells.rnn(x, h, W, R, b + d)


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def rnn_tanh_plain(x, h, W, R):
    """torch.nn.RNN with bias=False."""
    return cells.rnn(x, h, W, R, 0.0)


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H], d[H]")
def rnn_relu(x, h, W, R, b, d):
    """torch.nn.RNN with nonlinearity="relu"."""
    return cells.rnn(x, h, W, R, b + d, activation=relu)


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def rnn_relu_plain(x, h, W, R):
    """torch.nn.RNN with nonlinearity="relu" and bias=False."""
    return cells.rnn(x, h, W, R, 0.0, activation=relu)


@cell(input="x[I]", state="h[H]", weights="W[3H, I], R[3H, H]")
def gru_plain(x, h, W, R):
    """torch.nn.GRU with bias=False."""
    return cells.gru(x, h, W, R, 0.0, 0.0)


@cell(input="x[I]", state="h[H], c[H]", weights="W[4H, I], R[4H, H], b[4H], d[4H]")
def lstm(x, h, c, W, R, b, d):
    """torch.nn.LSTM."""
    return cells.lstm(x, h, c, W, R, b + d)


@cell(input="x[I]", state="h[H], c[H]", weights="W[4H, I], R[4H, H]")
def lstm_plain(x, h, c, W, R):
    """torch.nn.LSTM with bias=False."""
    return cells.lstm(x, h, c, W, R, 0.0)


@cell(
    input="x[I]",
    state="h[P], c[H]",
    weights="W[4H, I], R[4H, P], b[4H], d[4H], V[P, H]",
    source="Sak et al. 2014, arXiv:1402.1128v1, eq. 1 to 9; no peepholes, one projection",
)
def lstm_projected(x, h, c, W, R, b, d, V):
    """torch.nn.LSTM with proj_size."""
    h, c = cells.lstm(x, h, c, W, R, b + d)
    return V @ h, c


@cell(input="x[I]", state="h[P], c[H]", weights="W[4H, I], R[4H, P], V[P, H]")
def lstm_projected_plain(x, h, c, W, R, V):
    """torch.nn.LSTM with proj_size and bias=False."""
    h, c = cells.lstm(x, h, c, W, R, 0.0)
    return V @ h, c


PROJECTED = {True: lstm_projected, False: lstm_projected_plain}  # bias
FORMULAS: dict[tuple[str, bool], Cell] = {  # torch's mode, bias
    ("RNN_TANH", True): rnn_tanh,
    ("RNN_TANH", False): rnn_tanh_plain,
    ("RNN_RELU", True): rnn_relu,
    ("RNN_RELU", False): rnn_relu_plain,
    ("GRU", True): cells.gru,
    ("GRU", False): gru_plain,
    ("LSTM", True): lstm,
    ("LSTM", False): lstm_plain,
}
