"""Gated linear attention: a decay for each unit of the key."""

from elman.frontend.cell import cell
from elman.ops import outer, rows


@cell(
    input="q[K], k[K], v[V], a[K]",
    state="S[K, V]",
    output="y[V]",
    source="Yang et al. 2024 (GLA), arXiv:2312.06635v6, eq. 3",
)
def gla(q, k, v, a, S):
    """``a`` is the gate itself, between 0 and 1."""
    S = rows(a) * S + outer(k, v)
    return S.T @ q, S
