"""Leaky integrators: neurons that do not fire."""

from elman.cells.lif_euler import leaked
from elman.frontend.cell import cell


@cell(
    input="x[I]",
    state="v[H], i[H]",
    weights="W[H, I], b[H]",
    source="Norse 1.1.0 (norse/torch/functional/leaky_integrator.py): LICell behind a Linear, or "
    "LILinearCell, where b is 0",
)
def li(x, v, i, W, b, *, tau_mem_inv=100.0, tau_syn_inv=200.0, dt=0.001):
    """A current i [H] that decays drives membranes v [H], which leak; both are linear.

    Voltages are relative to Norse's ``v_leak``, time constants in 1/s, ``dt`` in s.
    """
    i = i + (W @ x + b)
    return leaked(v, i, tau_mem_inv, dt), (1 - dt * tau_syn_inv) * i
