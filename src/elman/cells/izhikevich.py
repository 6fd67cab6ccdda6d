"""Izhikevich's neurons: a membrane and its recovery."""

from elman.frontend.cell import cell
from elman.ops import spike


@cell(
    input="x[I]",
    state="v[H], u[H]",
    weights="W[H, I], bias[H]",
    init={"v": -70.0, "u": -14.0},
    output="s[H]",
    source="Izhikevich 2003, doi:10.1109/TNN.2003.820440, as Norse 1.1.0 has it: IzhikevichCell "
    "(norse/torch/functional/izhikevich.py), behind a Linear",
)
def izhikevich(
    x,
    v,
    u,
    W,
    bias,
    *,
    a=0.02,
    b=0.2,
    c=-65.0,
    d=6.0,
    square=0.04,
    slope=5.0,
    constant=140.0,
    v_th=30.0,
    tau_inv=250.0,
    dt=0.001,
    surrogate="fast_sigmoid(slope=1)",
):
    """Spikes s [H] of membranes v [H] in mV; a spike sets v to ``c`` and adds ``d`` to u [H].

    dv = 0.04 v² + 5 v + 140 - u + W x + bias and du = a (b v - u), of which a step adds
    ``tau_inv * dt``; defaults and initial states are Norse's ``tonic_spiking``. ``square``,
    ``slope`` and ``constant`` are its ``sq``, ``mn`` and ``bias``. The reset has a gradient.
    """
    grown = v + tau_inv * dt * (square * v * v + slope * v + constant - u + (W @ x + bias))
    u = u + tau_inv * dt * a * (b * v - u)
    s = spike(grown - v_th, surrogate)
    return s, (1 - s) * grown + s * c, u + s * d
