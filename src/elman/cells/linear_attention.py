"""Linear attention with its normaliser."""

from elman.frontend.cell import cell
from elman.ops import elu, outer, sum


def elu_plus_one(v):
    """elu(v) + 1, elementwise and positive: the paper's feature map."""
    return elu(v) + 1.0


@cell(
    input="q[K], k[K], v[V]",
    state="S[K, V], z[K]",
    output="y[V]",
    source="Katharopoulos et al. 2020, arXiv:2006.16236v3, eq. 16 to 20, features of eq. 7; eps as "
    "in the authors' code",
)
def linear_attention(q, k, v, S, z, *, feature=elu_plus_one, eps=1e-6):
    """The sum of keys times values is read by a query, and divided by what the query reads of the
    keys' sum.

    ``feature`` is applied to queries and keys; a function that returns its argument is for features
    that are computed before.
    """
    q, k = feature(q), feature(k)
    S, z = S + outer(k, v), z + k
    return S.T @ q / (sum(q * z) + eps), S, z
