"""Leaky integrate-and-fire neurons with adaptive thresholds (LSNN)."""

from math import exp

from elman.frontend.cell import cell
from elman.ops import spike


@cell(
    input="x[I]",
    state="s[H], m[H], a[H]",
    weights="W[H, I], R[H, H]",
    source="Bellec, Salaj, Subramoney, Legenstein & Maass 2018, arXiv:1803.09574; order of "
    "updates, constants and pseudo-derivative as of LSNN-official, without delays and refractory "
    "steps",
)
def alif(
    x, s, m, a, W, R, *, tau=20.0, tau_adaptation=200.0, threshold=0.01, beta=1.6, dampening=0.3
):
    """Each spike of s [H] raises its own threshold, by an adaptation a [H] that decays slowly.

    Time constants are in steps. The pseudo-derivative is ``dampening`` · max(0, 1 - |v|) of
    v = (m - threshold) / threshold. LSNN has no autapses: multiply R by a mask in a cell of your
    own, ``alif(x, s, m, a, W, mask * R)``.
    """
    keep, remember = exp(-1.0 / tau), exp(-1.0 / tau_adaptation)
    a = remember * a + (1 - remember) * s
    limit = threshold + beta * a
    m = keep * m + (1 - keep) * (W @ x + R @ s) - limit * s
    return spike((m - limit) / limit, "triangular", height=dampening), m, a
