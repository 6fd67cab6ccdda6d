"""The linear memory of Titans: gradient steps with momentum and decay."""

from elman.frontend.cell import cell
from elman.ops import outer


@cell(
    input="q[K], k[K], v[V], theta, eta, alpha",
    state="M[K, V], S[K, V]",
    output="y[V]",
    source="Behrouz, Zhong & Mirrokni 2024 (Titans), arXiv:2501.00663v1, eq. 12 to 15",
)
def titans(q, k, v, theta, eta, alpha, M, S):
    """M maps keys to values; S is the past surprise. The step size ``theta``, the momentum ``eta``
    and the decay ``alpha`` are the numbers themselves."""
    S = eta * S - outer(2 * theta * k, M.T @ k - v)
    M = (1 - alpha) * M + S
    return M.T @ q, M, S
