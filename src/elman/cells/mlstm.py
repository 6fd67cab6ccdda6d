"""LSTM with a matrix memory, exponential gates and a stabiliser (the mLSTM of xLSTM)."""

from elman.cells.slstm import forget_exponent
from elman.frontend.cell import cell
from elman.ops import abs, exp, maximum, outer, sqrt, sum


@cell(
    input="q[K], k[K], v[V], i, f",
    state="C[K, V], n[K], m",
    output="y[V]",
    source="Beck et al. 2024 (xLSTM), arXiv:2405.04517v2, eq. 19 to 27, stabilised by eq. 15 to 17",
)
def mlstm(q, k, v, i, f, C, n, m, *, forget="sigmoid"):
    """n sums keys; m is the largest exponent so far, and cancels out of y.

    ``i`` and ``f`` are the gates before their exponentials, ``forget`` as of ``slstm``. The keys
    are divided by the root of their size here; y is the memory's output, before the output gate.

    Raises:
        TraceError: the forget gate is something else.
    """
    previous = forget_exponent(m, f, forget)
    top = maximum(previous, i)
    i, f = exp(i - top), exp(previous - top)
    k = k / sqrt(k.shape[0])
    C = f * C + outer(i * k, v)
    n = f * n + i * k
    return C.T @ q / maximum(abs(sum(n * q)), exp(-top)), C, n, top
