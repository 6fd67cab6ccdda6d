"""Undamped independent controlled oscillatory recurrent network."""

from elman.frontend.cell import cell
from elman.ops import sigmoid, tanh


@cell(
    input="x[I]",
    state="y[H], z[H]",
    weights="V[H, I], w[H], b[H], c[H]",
    init={"w": lambda w: w.uniform_(0.0, 1.0), "c": lambda c: c.uniform_(-0.1, 0.1), "b": 0.0},
    source="Rusch & Mishra 2021, arXiv:2103.05487; as in the authors' code",
)
def unicornn(x, y, z, V, w, b, c, *, dt=0.1, alpha=1.0):
    """Each unit oscillates by itself, in steps of dt · sigmoid(c): positions y, velocities z."""
    step = dt * sigmoid(c)
    z = z - step * (tanh(w * y + V @ x + b) + alpha * y)
    return y + step * z, z
