"""Ordered-neurons LSTM: master gates whose units open and close in order."""

from elman.frontend.cell import cell
from elman.ops import cumsum, sigmoid, softmax, split, spread, tanh

_SOURCE = "Shen et al. 2019, arXiv:1810.09536, eq. 9 to 14"


def cumax(v):
    """The cumulative sum of a softmax, elementwise between 0 and 1 and never decreasing."""
    return cumsum(softmax(v))


def _ordered(c, gates, mi, mf):
    """An LSTM's step, its gates i, f, g, o opened and closed by master gates mi and mf."""
    i, f, g, o = gates
    overlap = mf * mi
    f = sigmoid(f) * overlap + (mf - overlap)
    i = sigmoid(i) * overlap + (mi - overlap)
    c = f * c + i * tanh(g)
    return sigmoid(o) * tanh(c), c


@cell(
    input="x[I]",
    state="h[H], c[H]",
    weights="W[6H, I], R[6H, H], b[6H]",
    source=f"{_SOURCE}, chunks of one unit",
)
def onlstm(x, h, c, W, R, b):
    """LSTM with gates i, f, g, o; then the master gates' rows, input before forget."""
    *gates, mi, mf = split(W @ x + R @ h + b, 6)
    return _ordered(c, gates, 1 - cumax(mi), cumax(mf))


@cell(
    input="x[I]",
    state="h[H], c[H]",
    weights="W[4H+2M, I], R[4H+2M, H], b[4H+2M]",
    source=f"{_SOURCE}; in chunks as in the authors' ON_LSTM.py",
)
def onlstm_chunked(x, h, c, W, R, b):
    """The same with M chunks of units: ``elman.Recurrent(cells.onlstm_chunked, …, M=115)``."""
    *gates, mi, mf = split(W @ x + R @ h + b, "H, H, H, H, M, M")
    return _ordered(c, gates, spread(1 - cumax(mi), c), spread(cumax(mf), c))
