"""Leaky integrate-and-fire neurons by Euler steps, as Norse has them."""

from elman.cells.lif import fired_at_once
from elman.frontend.cell import cell

_SOURCE = "Norse 1.1.0 (norse/torch/functional/lif.py)"


def leaked(v, i, tau_mem_inv, dt):
    """Membranes v [H] after an Euler step of dv/dt = tau_mem_inv (i - v)."""
    return v + dt * tau_mem_inv * (i - v)


@cell(
    input="x[I]",
    state="v[H], i[H]",
    weights="W[H, I], b[H]",
    output="s[H]",
    source=f"{_SOURCE}: LIFCell, behind a Linear",
)
def lif_euler(
    x,
    v,
    i,
    W,
    b,
    *,
    tau_mem_inv=100.0,
    tau_syn_inv=200.0,
    v_th=1.0,
    v_reset=0.0,
    dt=0.001,
    surrogate="fast_sigmoid(slope=1)",
    detach_reset=False,
):
    """A current i [H] that decays drives membranes v [H], reset in the step of their spike.

    Voltages are relative to Norse's ``v_leak``, time constants in 1/s, ``dt`` in s. The default
    surrogate is Norse's method ``super``, which ignores its alpha; ``triangle`` of alpha is
    ``"triangular(height=alpha)"``, others are in :mod:`elman.frontend.spikes`. The reset has a
    gradient unless ``detach_reset``.
    """
    i = i + (W @ x + b)
    v = leaked(v, i, tau_mem_inv, dt)
    s, v = fired_at_once(v, v_th, surrogate, detach_reset, rest=v_reset)
    return s, v, (1 - dt * tau_syn_inv) * i


@cell(
    input="x[I]",
    state="s[H], v[H], i[H]",
    weights="W[H, I], R[H, H]",
    source=f"{_SOURCE}: LIFRecurrentCell",
)
def rlif_euler(
    x,
    s,
    v,
    i,
    W,
    R,
    *,
    tau_mem_inv=100.0,
    tau_syn_inv=200.0,
    v_th=1.0,
    v_reset=0.0,
    dt=0.001,
    surrogate="fast_sigmoid(slope=1)",
    detach_reset=True,
):
    """``lif_euler`` with spikes s [H] that feed back through R; here Norse detaches the reset.

    Norse's R has no autapses, by a zero diagonal and a hook of its gradient: set the diagonal of
    ``net.R_l0`` to zero, and ``net.R_l0.register_hook(lambda d: d - d.diag().diag())``.
    """
    i = i + (W @ x + R @ s)
    v = leaked(v, i, tau_mem_inv, dt)
    s, v = fired_at_once(v, v_th, surrogate, detach_reset, rest=v_reset)
    return s, v, (1 - dt * tau_syn_inv) * i
