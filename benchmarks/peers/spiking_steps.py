"""Steps of spiking cells as snnTorch, Norse, SpikingJelly and LSNN write them in torch.

As those of ``published``, which joins them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
Result = tuple[Tensor, tuple[Tensor, ...]]
Step = Callable[..., Result]


class _Fires(torch.autograd.Function):
    """1 above 0; the derivative is what a function says."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, slope: Any) -> Tensor:
        ctx.save_for_backward(v)
        ctx.slope = slope
        return (v > 0).to(v)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Any:  # type: ignore[override]
        (v,) = ctx.saved_tensors
        return d * ctx.slope(v), None


Slope = Callable[[Tensor], Tensor]


def atan(v: Tensor) -> Tensor:
    """Of snnTorch, and SpikingJelly's ATan()."""
    return 1 / (1 + (math.pi * v).pow(2))


def superspike(v: Tensor) -> Tensor:
    """Norse's method super, of any alpha."""
    return 1 / (v.abs() + 1).pow(2)


def sigmoid_of_4(v: Tensor) -> Tensor:
    """SpikingJelly's Sigmoid()."""
    s = torch.sigmoid(4 * v)
    return (1 - s) * s * 4


def _fires(v: Tensor, slope: Slope = atan) -> Tensor:
    return _Fires.apply(v, slope)  # type: ignore[return-value]


def _reset_by(reset: str, base: Tensor, current: Tensor, m: Tensor, threshold: float) -> Tensor:
    fired = (m - threshold > 0).to(m).detach()
    if reset == "subtract":
        return base + current - fired * threshold
    if reset == "zero":
        return base + current - fired * (base + current)
    return (base - fired * base if reset == "zero_before" else base) + current


def _spikes(
    m: Tensor, before: Tensor, reset: str, delay: bool, threshold: float = 1.0
) -> tuple[Tensor, Tensor]:
    """fire() of snnTorch's neurons, and what follows it if reset_delay is false."""
    s = _fires(m - threshold)
    do_reset = s - (before - threshold > 0).to(m).detach()
    if not delay and reset == "subtract":
        m = m - do_reset * threshold
    elif not delay and reset != "none":
        m = m - do_reset * m
    return s, m


def lif(
    x: Tensor,
    m: Tensor,
    w: Weights,
    reset: str = "subtract",
    threshold: float = 1.0,
    delay: bool = True,
) -> Result:
    new = _reset_by(reset, 0.9 * m, x @ w["W"].T + w["b"], m, threshold)
    s, m = _spikes(new, m, reset, delay, threshold)
    return s, (m,)


def rlif(
    x: Tensor, s: Tensor, m: Tensor, w: Weights, reset: str = "subtract", delay: bool = True
) -> Result:
    current = x @ w["W"].T + w["b"] + s @ w["R"].T + w["c"]
    s, m = _spikes(_reset_by(reset, 0.9 * m, current, m, 1.0), m, reset, delay)
    return s, (s, m)


def synaptic(
    x: Tensor, i: Tensor, m: Tensor, w: Weights, reset: str = "subtract", delay: bool = True
) -> Result:
    i = 0.9 * i + x @ w["W"].T + w["b"]
    s, m = _spikes(_reset_by(reset, 0.8 * m, i, m, 1.0), m, reset, delay)
    return s, (i, m)


def alpha_lif(
    x: Tensor, e: Tensor, i: Tensor, m: Tensor, w: Weights, reset: str = "zero"
) -> Result:
    """snnTorch 1.0.0, _neurons/alpha.py."""
    fired, current = (m - 1.0 > 0).to(m).detach(), x @ w["W"].T + w["b"]
    tau = math.log(0.9) / (math.log(0.8) - math.log(0.9)) + 1
    exc, inh = 0.9 * e + current, 0.8 * i - current
    mem = tau * (exc + inh)
    less = {"zero": (exc, inh, mem), "subtract": (1.0, inh, -i), "none": (0.0, 0.0, 0.0)}[reset]
    exc, inh, mem = (v - fired * part for v, part in zip((exc, inh, mem), less))
    return _fires(mem - 1.0), (exc, inh, mem)


def spiking_lstm(
    x: Tensor, c: Tensor, h: Tensor, w: Weights, reset: str = "none", threshold: float = 1.0
) -> Result:
    """snnTorch 1.0.0, _neurons/slstm.py, of equal sizes of input and state."""
    fired = (h - threshold > 0).to(h).detach()
    i, f, g, o = (x @ w["W"].T + h @ w["R"].T + w["b"]).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    h = h - fired * {"zero": h, "subtract": threshold, "none": 0.0}[reset]
    return _fires(h - threshold), (c, h)


def _norse(
    v: Tensor, i: Tensor, reset: float, detach: bool, slope: Slope
) -> tuple[Tensor, Tensor, Tensor]:
    """lif_step of Norse 1.1.0, functional/lif.py, once the current has jumped."""
    v = v + 0.001 * 100.0 * ((0.0 - v) + i)
    z = _fires(v - 1.0, slope)
    fired = z.detach() if detach else z
    return z, (1 - fired) * v + fired * reset, i + -0.001 * 200.0 * i


def lif_euler(
    x: Tensor,
    v: Tensor,
    i: Tensor,
    w: Weights,
    reset: float = 0.0,
    detach: bool = False,
    slope: Slope = superspike,
) -> Result:
    s, v, i = _norse(v, i + x @ w["W"].T + w["b"], reset, detach, slope)
    return s, (v, i)


def rlif_euler(
    x: Tensor,
    s: Tensor,
    v: Tensor,
    i: Tensor,
    w: Weights,
    reset: float = 0.0,
    detach: bool = True,
) -> Result:
    s, v, i = _norse(v, i + x @ w["W"].T + s @ w["R"].T, reset, detach, superspike)
    return s, (s, v, i)


def lsnn(x: Tensor, s: Tensor, v: Tensor, i: Tensor, a: Tensor, w: Weights) -> Result:
    """lsnn_step of Norse 1.1.0, functional/lsnn.py, whose b is 1 + a."""
    v = v + 0.001 * 100.0 * ((0.0 - v) + i)
    b = 1.0 + a
    b = b + 0.001 / 800 * (1.0 - b)
    i = i + -0.001 * 200.0 * i + x @ w["W"].T + s @ w["R"].T
    s = _fires(v - b, superspike)
    z = s.detach()
    return s, (s, (1 - z) * v + z * 0.0, i, b + z * 1.8 - 1.0)


def li(x: Tensor, v: Tensor, i: Tensor, w: Weights) -> Result:
    """li_step of Norse 1.1.0, functional/leaky_integrator.py."""
    i = i + x @ w["W"].T + w["b"]
    v = v + 0.001 * 100.0 * ((0.0 - v) + i)
    return v, (v, i + -0.001 * 200.0 * i)


def izhikevich(x: Tensor, v: Tensor, u: Tensor, w: Weights) -> Result:
    """izhikevich_feed_forward_step of Norse 1.1.0, functional/izhikevich.py."""
    current = x @ w["W"].T + w["bias"]
    new_v = v + 250 * 0.001 * (0.04 * v**2 + 5 * v + 140 - u + current)
    u = u + 250 * 0.001 * 0.02 * (0.2 * v - u)
    z = _fires(new_v - 30, superspike)
    return z, ((1 - z) * new_v + z * -65, (1 - z) * u + z * (u + 6))


def _jelly(v: Tensor, soft: bool, detach: bool, slope: Slope) -> tuple[Tensor, Tensor]:
    """Fire and voltage_reset of SpikingJelly 2.0.0, functional/neuron.py."""
    s = _fires(v - 1.0, slope)
    spike = s.detach() if detach else s
    return s, v - spike * 1.0 if soft else spike * 0.0 + (1 - spike) * v


def lif_node(
    x: Tensor,
    v: Tensor,
    w: Weights,
    tau: float = 2.0,
    decay: bool = True,
    soft: bool = False,
    detach: bool = False,
    slope: Slope = sigmoid_of_4,
) -> Result:
    """lif_charge of SpikingJelly 2.0.0, functional/neuron.py, at v_reset 0; if_step without tau."""
    x = x @ w["W"].T + w["b"]
    leak = v / tau if tau < math.inf else 0.0
    v = v + (x - v) / tau if decay else v - leak + x
    s, v = _jelly(v, soft, detach, slope)
    return s, (v,)


def plif(
    x: Tensor,
    v: Tensor,
    w: Weights,
    decay: bool = True,
    soft: bool = False,
    detach: bool = False,
    slope: Slope = sigmoid_of_4,
) -> Result:
    """plif_step of SpikingJelly 2.0.0, functional/neuron.py."""
    x, share = x @ w["W"].T + w["b"], torch.sigmoid(w["w"])
    v = v + (x - v) * share if decay else v - v * share + x
    s, v = _jelly(v, soft, detach, slope)
    return s, (v,)


def alif(x: Tensor, s: Tensor, m: Tensor, a: Tensor, w: Weights) -> Result:
    keep, slow = math.exp(-1 / 20), math.exp(-1 / 200)
    a = slow * a + (1 - slow) * s
    limit = 0.01 + 1.6 * a
    m = keep * m + (1 - keep) * (x @ w["W"].T + s @ w["R"].T) - s * limit
    scaled = (m - limit) / limit
    s = _Fires.apply(scaled, lambda v: 0.3 * torch.relu(1 - v.abs()))
    return s, (s, m, a)


STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (
        *(lif, rlif, synaptic, alpha_lif, spiking_lstm, lif_euler, rlif_euler, lsnn, li),
        *(izhikevich, plif, lif_node, alif),
    )
}
