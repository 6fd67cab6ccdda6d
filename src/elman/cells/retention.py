"""Retention: linear attention with a fixed decay for each head."""

from elman.frontend.cell import cell
from elman.ops import outer


@cell(
    input="q[K], k[K], v[V]",
    static="decay",
    state="S[K, V]",
    output="y[V]",
    source="Sun et al. 2023 (RetNet), arXiv:2307.08621v4, eq. 6",
)
def retention(q, k, v, decay, S):
    """``decay`` is the paper's gamma; its rotations of q and k by position come before."""
    S = decay * S + outer(k, v)
    return S.T @ q, S
