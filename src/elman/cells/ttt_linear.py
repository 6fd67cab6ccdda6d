"""TTT-Linear: a linear model that is trained by each step's own gradient."""

from elman.frontend.cell import cell
from elman.ops import layer_norm, mean, outer, sqrt, var


@cell(
    input="q[K], k[K], v[K], eta",
    static="g[K], b[K]",
    state="W[K, K], c[K]",
    output="y[K]",
    source="Sun et al. 2024, arXiv:2407.04620v4, section 2 with mini-batches of one step; half of "
    "the squared error, the bias c and eps as in the authors' code",
)
def ttt_linear(q, k, v, eta, g, b, W, c, *, eps=1e-6):
    """The model is f(x) = x + LN(W'x + c), LN with gain ``g`` and bias ``b``; ``eta`` is the step
    size itself."""
    z = W.T @ k + c
    normed = layer_norm(z, eps=eps)
    d = g * (k + g * normed + b - v)  # of half of |f(k) - v|², before the norm's own derivative
    d = (d - mean(d) - normed * mean(d * normed)) / sqrt(var(z) + eps)
    W, c = W - outer(eta * k, d), c - eta * d
    return q + g * layer_norm(W.T @ q + c, eps=eps) + b, W, c
