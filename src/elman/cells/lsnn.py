"""Leaky integrate-and-fire neurons with adaptive thresholds by Euler steps, as Norse has them."""

from elman.cells.lif import fired_at_once
from elman.cells.lif_euler import leaked
from elman.frontend.cell import cell
from elman.ops import stop_gradient


@cell(
    input="x[I]",
    state="s[H], v[H], i[H], a[H]",
    weights="W[H, I], R[H, H]",
    source="Bellec, Salaj, Subramoney, Legenstein & Maass 2018, arXiv:1803.09574, as Norse 1.1.0 "
    "has it: LSNNRecurrentCell (norse/torch/functional/lsnn.py)",
)
def lsnn(
    x,
    s,
    v,
    i,
    a,
    W,
    R,
    *,
    tau_mem_inv=100.0,
    tau_syn_inv=200.0,
    tau_adapt_inv=1 / 800,
    v_th=1.0,
    beta=1.8,
    dt=0.001,
    surrogate="fast_sigmoid(slope=1)",
):
    """Each spike of s [H] raises its own threshold v_th + a by ``beta``; a [H] decays slowly.

    Unlike in ``rlif_euler``, the current i [H] of this step reaches membranes v [H] in the next
    one. a is Norse's b - v_th; voltages are relative to its ``v_leak`` and ``v_reset``, which are
    one by default. Resets and jumps of a pass no gradient. Surrogates and autapses as there.
    """
    v, a = leaked(v, i, tau_mem_inv, dt), (1 - dt * tau_adapt_inv) * a
    i = (1 - dt * tau_syn_inv) * i + (W @ x + R @ s)
    s, v = fired_at_once(v, v_th + a, surrogate, detach_reset=True)
    return s, v, i, a + beta * stop_gradient(s)
