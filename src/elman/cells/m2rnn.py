"""M2RNN: a nonlinear RNN whose state is a matrix, the rows of which share a recurrent weight."""

from elman.frontend.cell import cell
from elman.ops import outer, tanh


@cell(
    input="q[K], k[K], v[V], f",
    static="W[V, V]",
    state="S[K, V]",
    output="y[V]",
    source="Mishra et al. 2026 (M2RNN), arXiv:2603.14360; as m2rnn_torch of the authors' code",
)
def m2rnn(q, k, v, f, W, S):
    """The forget gate ``f`` is the number itself; W is one of each head, as heads are samples."""
    S = f * S + (1 - f) * tanh(S @ W + outer(k, v))
    return S.T @ q, S
