"""Longhorn: the closed-form step of online regression, on a diagonal."""

from elman.frontend.cell import cell
from elman.ops import outer, sum


@cell(
    input="x[V], q[K], k[K], b[V]",
    state="S[V, K]",
    output="y[V]",
    source="Liu et al. 2024 (Longhorn), arXiv:2407.14207v5, section 3.2, as in the authors' code",
)
def longhorn(x, q, k, b, S):
    """``b`` is the importance itself, beta, between 0 and 1."""
    step = b / (1 + b * sum(k * k))
    S = (1 - outer(step, k * k)) * S + outer(step * x, k)
    return S @ q, S
