"""Long expressive memory."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, split, tanh


@cell(
    input="x[I]",
    state="y[H], z[H]",
    weights="W[4H, I], R[3H, H], Q[H, H], b[4H]",
    source="Rusch, Mishra, Erichson & Mahoney 2022, arXiv:2110.04744v2, eq. 3",
)
def lem(x, y, z, W, R, Q, b, *, dt=1.0):
    """Two states with learned time steps; the second product reads the new z."""
    x1, x2, xz, xy = split(W @ x + b, 4)
    r1, r2, rz = split(R @ y, 3)
    step1 = dt * sigmoid(x1 + r1)
    step2 = dt * sigmoid(x2 + r2)
    z = (1 - step1) * z + step1 * tanh(xz + rz)
    y = (1 - step2) * y + step2 * tanh(xy + Q @ z)
    return y, z
