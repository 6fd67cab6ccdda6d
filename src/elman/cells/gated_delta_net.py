"""Gated DeltaNet: the delta rule on a state that decays."""

from elman.cells.delta_net import delta_net
from elman.frontend.cell import cell


@cell(
    input="q[K], k[K], v[V], a, b",
    state="S[K, V]",
    output="y[V]",
    source="Yang, Kautz & Hatamizadeh 2024 (Gated DeltaNet), arXiv:2412.06464v3, eq. 10",
)
def gated_delta_net(q, k, v, a, b, S):
    """``a`` and ``b`` are the decay and the writing strength themselves, alpha and beta."""
    return delta_net(q, k, v, b, a * S)
