"""Gated slot attention: attention over slots that forget."""

from elman.frontend.cell import cell
from elman.ops import outer, rows, softmax


@cell(
    input="q[K], k[K], v[V], a[M]",
    state="W[M, V], U[M, K]",
    output="y[V]",
    source="Zhang et al. 2024 (GSA), arXiv:2409.07146v2, section 3.1",
)
def gated_slot_attention(q, k, v, a, W, U):
    """U and W are the slots' keys and values; ``a`` is the gate itself, one for each slot."""
    U = rows(a) * U + outer(1 - a, k)
    W = rows(a) * W + outer(1 - a, v)
    return W.T @ softmax(U @ q), W, U
