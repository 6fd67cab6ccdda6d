"""LSTM with exponential gates and a stabiliser (the sLSTM of xLSTM)."""

from elman.frontend.cell import cell
from elman.frontend.lines import refuse
from elman.ops import exp, maximum, sigmoid, softplus, split, tanh


def forget_exponent(m, f, forget):
    """m plus the logarithm of the forget gate, which is a sigmoid or an exponential of f. Raises
    TraceError: it is to be something else."""
    if forget not in ("sigmoid", "exp"):
        refuse(f"forget must be sigmoid or exp, not {forget!r}", 'forget="sigmoid"')
    return m + f if forget == "exp" else m - softplus(-f)


@cell(
    input="x[I]",
    state="h[H], c[H], n[H], m[H]",
    weights="W[4H, I], R[4H, H], b[4H]",
    source="Beck et al. 2024 (xLSTM), arXiv:2405.04517v2, eq. 8 to 17",
)
def slstm(x, h, c, n, m, W, R, b, *, forget="sigmoid", least=None):
    """n normalises c; m is the largest exponent so far, and cancels out of h.

    So it does not matter that some implementations begin m elsewhere than at 0. Others divide by
    max(n, 1), where m does not cancel: ``least=1.0``. ``forget`` is ``"sigmoid"`` or ``"exp"``, as
    the paper allows for that gate.

    Raises:
        TraceError: the forget gate is something else.
    """
    i, f, g, o = split(W @ x + R @ h + b, 4)
    previous = forget_exponent(m, f, forget)
    top = maximum(previous, i)
    i, f = exp(i - top), exp(previous - top)
    c = f * c + i * tanh(g)
    n = f * n + i
    bottom = n if least is None else maximum(n, least)
    return sigmoid(o) * (c / bottom), c, n, top
