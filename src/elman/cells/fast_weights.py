"""Fast weight programmer: the delta rule on normalised features."""

from elman.cells.delta_net import delta_net
from elman.cells.linear_attention import elu_plus_one
from elman.frontend.cell import cell
from elman.ops import sum


@cell(
    input="q[K], k[K], v[V], b",
    state="S[K, V]",
    output="y[V]",
    source="Schlag, Irie & Schmidhuber 2021, arXiv:2102.11174v3, section 4.2, with sum "
    "normalisation",
)
def fast_weights(q, k, v, b, S, *, feature=elu_plus_one):
    """``b`` is the writing strength itself. ``feature`` is applied to queries and keys, and gives
    positive values; a function that returns its argument is for the paper's DPFP, which makes
    longer vectors and is computed before."""
    q, k = feature(q), feature(k)
    return delta_net(q / sum(q), k / sum(k), v, b, S)
