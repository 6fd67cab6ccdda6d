"""RWKV-6 (Finch): a decay for each unit of the key, and a bonus for the step itself."""

from elman.frontend.cell import cell
from elman.ops import outer, rows, sum


@cell(
    input="r[K], k[K], v[V], w[K]",
    static="u[K]",
    state="S[K, V]",
    output="y[V]",
    source="Peng et al. 2024 (Eagle and Finch), arXiv:2404.05892v4, time mixing of Finch in its "
    "recurrent form",
)
def rwkv6(r, k, v, w, u, S):
    """``w`` is the decay itself, between 0 and 1; ``u`` is the bonus of a head."""
    y = S.T @ r + sum(r * u * k) * v
    return y, rows(w) * S + outer(k, v)
