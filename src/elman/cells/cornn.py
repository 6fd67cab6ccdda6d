"""Coupled oscillatory recurrent network."""

from elman.frontend.cell import cell
from elman.ops import tanh


@cell(
    input="x[I]",
    state="y[H], z[H]",
    weights="V[H, I], Wy[H, H], Wz[H, H], b[H]",
    source="Rusch & Mishra 2021, arXiv:2010.00951, explicit in the damping as in the authors' code",
)
def cornn(x, y, z, V, Wy, Wz, b, *, dt=0.042, gamma=2.7, epsilon=4.7):
    """Damped oscillators: positions y, velocities z; constants of sequential MNIST."""
    z = z + dt * (tanh(Wy @ y + Wz @ z + V @ x + b) - gamma * y - epsilon * z)
    return y + dt * z, z
