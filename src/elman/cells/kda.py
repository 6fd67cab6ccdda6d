"""Kimi delta attention: the delta rule with a decay for each unit of the key."""

from elman.cells.delta_net import delta_net
from elman.frontend.cell import cell
from elman.ops import rows


@cell(
    input="q[K], k[K], v[V], a[K], b",
    state="S[K, V]",
    output="y[V]",
    source="Kimi Team 2025 (Kimi Linear), arXiv:2510.26692v2, eq. 1",
)
def kda(q, k, v, a, b, S):
    """``a`` and ``b`` are the decay and the writing strength themselves, alpha and beta."""
    return delta_net(q, k, v, b, rows(a) * S)
