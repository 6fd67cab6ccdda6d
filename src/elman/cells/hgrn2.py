"""Hierarchically gated recurrent network, second version: the key is what the gate lets go."""

from elman.cells.gla import gla
from elman.frontend.cell import cell


@cell(
    input="q[K], f[K], v[V]",
    state="S[K, V]",
    output="y[V]",
    source="Qin et al. 2024 (HGRN2), arXiv:2404.07904v2, section 3.2",
)
def hgrn2(q, f, v, S):
    """``f`` is the forget gate itself, between its lower bound and 1; ``v`` is the paper's i."""
    return gla(q, 1 - f, v, f, S)
