"""DeltaNet: what a key stands for is corrected, not added to."""

from elman.frontend.cell import cell
from elman.ops import outer


@cell(
    input="q[K], k[K], v[V], b",
    state="S[K, V]",
    output="y[V]",
    source="Yang et al. 2024 (DeltaNet), arXiv:2406.06484v6, section 2.2; the delta rule of Schlag "
    "et al. 2021, arXiv:2102.11174v3",
)
def delta_net(q, k, v, b, S):
    """Keys have a norm of 1; ``b`` is the writing strength itself, beta."""
    S = S + outer(k, b * (v - S.T @ k))
    return S.T @ q, S
