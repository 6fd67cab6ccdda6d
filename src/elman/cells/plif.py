"""Leaky integrate-and-fire neurons as SpikingJelly has them, with a time constant to learn."""

from elman.cells.lif import fired_at_once
from elman.frontend.cell import cell
from elman.ops import sigmoid

_SOURCE = "SpikingJelly 2.0.0 (spikingjelly/activation_based/neuron)"


def _charged(v, current, rate, decay_input):
    """Membranes v [H], which leak by the share ``rate`` and take the current [H], or its share."""
    return v + rate * (current - v) if decay_input else v - rate * v + current


@cell(
    input="x[I]",
    state="v[H]",
    weights="W[H, I], b[H], w",
    init={"w": 0.0},
    output="s[H]",
    source="Fang, Yu, Chen, Masquelier, Huang & Tian 2021, arXiv:2007.05785; as ParametricLIFNode "
    f"of {_SOURCE}, behind a Linear",
)
def plif(
    x,
    v,
    W,
    b,
    w,
    *,
    decay_input=True,
    v_threshold=1.0,
    reset_mechanism="zero",
    detach_reset=False,
    surrogate="sigmoid(slope=4)",
):
    """``lif_node`` of a time constant 1 / sigmoid(w), one for all neurons, which is learned.

    w is -log(init_tau - 1), so 0 for SpikingJelly's ``init_tau=2.0``.
    """
    v = _charged(v, W @ x + b, sigmoid(w), decay_input)
    return fired_at_once(v, v_threshold, surrogate, detach_reset, reset_mechanism)


@cell(
    input="x[I]",
    state="v[H]",
    weights="W[H, I], b[H]",
    output="s[H]",
    source=f"{_SOURCE}: LIFNode and IFNode, behind a Linear",
)
def lif_node(
    x,
    v,
    W,
    b,
    *,
    tau=2.0,
    decay_input=True,
    v_threshold=1.0,
    reset_mechanism="zero",
    detach_reset=False,
    surrogate="sigmoid(slope=4)",
):
    """Spikes s [H] of membranes v [H], which leak by 1 / tau and are reset in the step of a spike.

    With ``decay_input`` tau divides the input, too. ``tau=math.inf, decay_input=False`` is IFNode.
    ``reset_mechanism="zero"`` is ``v_reset=0.0`` (for another one, state voltages relative to it),
    ``"subtract"`` is ``v_reset=None``. ``surrogate``: ``"sigmoid(slope=4)"`` is ``Sigmoid()``,
    ``"atan"`` is ``ATan()``. SpikingJelly also fires where v equals the threshold exactly.
    """
    v = _charged(v, W @ x + b, 1 / tau, decay_input)
    return fired_at_once(v, v_threshold, surrogate, detach_reset, reset_mechanism)
