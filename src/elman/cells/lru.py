"""Linear recurrent unit: a complex diagonal as pairs of reals."""

from elman.frontend.cell import cell
from elman.ops import cos, exp, sin, split, sqrt


@cell(
    input="x[I]",
    state="p[H], q[H]",
    weights="B[2H, I], C[H, H], S[H, H], D[H, I], nu[H], theta[H]",
    init={"nu": -2.0},
    output="y[H]",
    source="Orvieto et al. 2023, arXiv:2303.06349v1, eq. 5 to 8; the normalisation is computed "
    "from nu, where the paper starts from it and learns on",
)
def lru(x, p, q, B, C, S, D, nu, theta):
    """p + iq turns by exp(theta) and shrinks by exp(-exp(nu)); y = Re((C + iS)(p + iq)) + D x."""
    modulus = exp(-exp(nu))
    a, b = modulus * cos(exp(theta)), modulus * sin(exp(theta))
    g = sqrt(1 - modulus * modulus)
    up, uq = split(B @ x, 2)
    p, q = a * p - b * q + g * up, a * q + b * p + g * uq
    return C @ p - S @ q + D @ x, p, q
