"""Minimal gated unit."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, tanh


@cell(
    input="x[I]",
    state="h[H]",
    weights="Wf[H, I], Rf[H, H], bf[H], Wn[H, I], Rn[H, H], bn[H]",
    source="Zhou et al. 2016, arXiv:1603.09420v1, eqs. 6-8",
)
def mgu(x, h, Wf, Rf, bf, Wn, Rn, bn):
    """One gate that both resets and updates; the candidate's product reads f * h."""
    f = sigmoid(Wf @ x + Rf @ h + bf)
    n = tanh(Wn @ x + Rn @ (f * h) + bn)
    return (1 - f) * h + f * n
