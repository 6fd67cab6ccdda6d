"""RWKV-7 (Goose): a delta rule that removes and writes along directions of their own."""

from elman.frontend.cell import cell
from elman.ops import outer, rows


@cell(
    input="r[K], w[K], k[K], v[V], kk[K], a[K]",
    state="S[K, V]",
    output="y[V]",
    source="Peng et al. 2025 (RWKV-7), arXiv:2503.14456v2, the weighted key value state of section "
    "4, transposed",
)
def rwkv7(r, w, k, v, kk, a, S):
    """``w`` is the decay and ``a`` the learning rate themselves; ``kk`` is the removal key, of norm
    1, and ``k`` the replacement key."""
    S = rows(w) * S - outer(a * kk, S.T @ kk) + outer(k, v)
    return S.T @ r, S
