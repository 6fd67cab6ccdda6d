"""Gated DeltaNet-2: the delta rule with one gate of what is erased and one of what is written."""

from elman.frontend.cell import cell
from elman.ops import outer, rows


@cell(
    input="q[K], k[K], v[V], a[K], b[K], w[V]",
    state="S[K, V]",
    output="y[V]",
    source="Hatamizadeh, Choi & Kautz 2026 (Gated DeltaNet-2), arXiv:2605.22791v1, gated delta "
    "rule 2 in its recurrent form",
)
def gated_delta_net2(q, k, v, a, b, w, S):
    """``a`` is the decay itself, ``b`` the gate of what is erased, for each unit of the key, and
    ``w`` the gate of what is written, for each unit of the value; of one number for both it is
    ``kda``."""
    S = rows(a) * S
    S = S + outer(k, w * v - S.T @ (b * k))
    return S.T @ q, S
