"""Sixteen published cells with thresholds, masks and gates, as their users write them.

A threshold is ``spike``: exactly 1 or 0 forward, a surrogate's slope backward.
"""

from __future__ import annotations

from elman import cell
from elman.ops import (
    abs,
    concat,
    exp,
    mean,
    relu,
    sigmoid,
    split,
    stop_gradient,
    tanh,
    where,
)
from helpers import Sizes


def spike(v):
    """Heaviside with the slope of a steep sigmoid (Zenke & Ganguli 2018, arXiv:1705.11146)."""
    soft = sigmoid(4.0 * v)
    return (v > 0) + (soft - stop_gradient(soft))


@cell(input="x[I]", state="s[H], m[H]", weights="W[H, I], b[H]")
def lif(x, s, m, W, b):
    """Leaky integrate and fire, reset by subtraction (Eshraghian et al. 2023, eq. 4)."""
    m = 0.75 * m + W @ x + b - stop_gradient(m > 1.0)
    return spike(m - 1.0), m


@cell(input="x[I]", state="s[H], m[H]", weights="W[H, I], b[H]")
def lif_zero(x, s, m, W, b):
    """The same, reset to zero."""
    m = (0.75 * m + W @ x + b) * (1 - stop_gradient(m > 1.0))
    return spike(m - 1.0), m


@cell(input="x[I]", state="s[H], i[H], m[H]", weights="W[H, I], b[H]")
def synaptic(x, s, i, m, W, b):
    """A synaptic current with a decay of its own."""
    i = 0.5 * i + W @ x + b
    m = 0.75 * m + i - s
    return spike(m - 1.0), i, m


@cell(input="x[I]", state="s[H], m[H]", weights="W[H, I], R[H, H], b[H]")
def recurrent_lif(x, s, m, W, R, b):
    """Spikes feed back; the threshold is asked twice, before and after."""
    m = 0.875 * m + W @ x + R @ s + b - 0.5 * (m > 0.5)
    return spike(m - 0.5), m


@cell(input="x[I]", state="s[H], m[H], a[H]", weights="W[H, I], R[H, H]")
def alif(x, s, m, a, W, R):
    """An adaptive threshold (Bellec et al. 2018, arXiv:1803.09574, eqs. 1-2)."""
    a = 0.9375 * a + s
    threshold = 0.5 + 0.125 * a
    m = 0.75 * m + W @ x + R @ s - threshold * s
    return spike(m - threshold), m, a


@cell(input="x[I]", state="s[H], m[H]", weights="W[H, I], b[H], tau[H]")
def plif(x, s, m, W, b, tau):
    """A learnt decay (Fang et al. 2021, arXiv:2007.05785)."""
    m = m + sigmoid(tau) * (W @ x + b - m)
    return spike(m - 0.25), m * (1 - stop_gradient(m > 0.25))


@cell(input="x[I]", state="s[H], m[H], w[H]", weights="W[H, I], R[H, H], alpha[H], beta[H]")
def radlif(x, s, m, w, W, R, alpha, beta):
    """Recurrent and adaptive (Bittar & Garner 2022)."""
    decay = exp(-exp(alpha))
    w = exp(-exp(beta)) * w + 0.5 * m + s
    m = decay * (m - s) + (1 - decay) * (W @ x + R @ s - 0.25 * w)
    return spike(m - 0.25), m, w


@cell(input="x[I]", state="y[H], s[H]", weights="W[H, I], R[H, H], b[H]")
def snu(x, y, s, W, R, b):
    """The spiking neural unit (Wozniak et al. 2020, eq. 1)."""
    s = relu(W @ x + R @ y + 0.75 * s * (1 - y))
    return spike(s + b), s


@cell(input="x[I]", state="s[H], v[H], u[H]", weights="W[H, I]")
def izhikevich(x, s, v, u, W):
    """Izhikevich 2003, scaled to O(1): where resets two states."""
    v = v + 0.25 * (v * v - u + W @ x)
    u = u + 0.0625 * (0.25 * v - u)
    fired = v > 1.0
    return spike(v - 1.0), where(fired, -0.5, v), where(fired, u + 0.25, u)


@cell(input="x[I]", state="y[H], c[H]", weights="W[3H, I], R[3H, H], b[3H], t[H]")
def egru(x, y, c, W, R, b, t):
    """The event-based GRU: only units above their threshold are seen (Subramoney et al. 2022)."""
    c = c - y
    xu, xr, xz = split(W @ x + b, 3)
    hu, hr, hz = split(R @ y, 3)
    z = tanh(xz + sigmoid(xr + hr) * hz)
    u = sigmoid(xu + hu)
    c = u * z + (1 - u) * c
    return c * spike(c - sigmoid(t)), c


@cell(input="x[I]", state="h[H], last[I], m[3H]", weights="W[3H, I], R[3H, H], b[3H]")
def delta_gru(x, h, last, m, W, R, b):
    """Only changes above a threshold are multiplied (Neil et al. 2017, arXiv:1612.05571)."""
    change = x - last
    seen = abs(change) > 0.25
    last = where(seen, x, last)
    m = m + W @ (change * seen)
    r, z, n = split(m + b, 3)
    hr, hz, hn = split(R @ h, 3)
    z = sigmoid(z + hz)
    return (1 - z) * tanh(n + sigmoid(r + hr) * hn) + z * h, last, m


@cell(input="x[I]", state="h[H], u", weights="W[H, I], R[H, H], b[H], p[H], q")
def skip_rnn(x, h, u, W, R, b, p, q):
    """It learns when to update its state (Campos et al. 2018, arXiv:1708.06834, eqs. 5-8)."""
    on = (u > 0.5) + (u - stop_gradient(u))
    new = on * tanh(W @ x + R @ h + b) + (1 - on) * h
    gain = sigmoid(mean(p * new) + q)
    return new, on * gain + (1 - on) * (u + where(u + gain > 1, 1 - u, gain))


@cell(input="x[I], m", state="h[H]", weights="W[3H, I], R[3H, H], b[3H], c[3H]")
def gru_reset(x, m, h, W, R, b, c):
    """A GRU whose state is reset where an episode begins."""
    h = where(m > 0.5, 0 * h, h)
    xr, xz, xn = split(W @ x + b, 3)
    hr, hz, hn = split(R @ h + c, 3)
    z = sigmoid(xz + hz)
    return (1 - z) * tanh(xn + sigmoid(xr + hr) * hn) + z * h


@cell(
    input="x[I], m[I], d[I]",
    state="h[H], last[I]",
    weights="W[3H, I], R[3H, H], V[3H, I], b[3H], gx[I], Gh[H, I], gb[H]",
)
def gru_d(x, m, d, h, last, W, R, V, b, gx, Gh, gb):
    """Missing values and the state decay over gaps (Che et al. 2018, eqs. 10-14)."""
    seen, gap = m > 0, abs(d)
    last = where(seen, x, last)
    x = where(seen, x, exp(-relu(gx * gap)) * last)
    h = exp(-relu(Gh @ gap + gb)) * h
    r, z, n = split(W @ x + V @ seen + b, 3)
    hr, hz, _ = split(R @ h, 3)
    r, z = sigmoid(r + hr), sigmoid(z + hz)
    _, _, hn = split(R @ (r * h), 3)
    return (1 - z) * h + z * tanh(n + hn), last


@cell(input="x[I], k[H]", state="h[H], c[H]", weights="W[4H, I], R[4H, H], b[4H]")
def zoneout_lstm(x, k, h, c, W, R, b):
    """Units keep their past where a mask says so (Krueger et al. 2017, arXiv:1606.01305)."""
    i, f, g, o = split(W @ x + R @ h + b, 4)
    new = sigmoid(f) * c + sigmoid(i) * tanh(g)
    kept = where(k > 0.5, c, new)
    return where(k > 0.5, h, sigmoid(o) * tanh(new)), kept


@cell(input="x[I], t", state="h[H]", weights="U[H, I+H], b[H], F[3H, H], f[3H]")
def cfc(x, t, h, U, b, F, f):
    """Closed-form continuous time, gaps between samples given (Hasani et al. 2022, eq. 10)."""
    z = 1.7159 * tanh(0.666 * (U @ concat(x, h) + b))
    a, g, s = split(F @ z + f, 3)
    gate = sigmoid(-(a * relu(t) + s))
    return tanh(g) * gate + (1 - gate) * tanh(a)


SPIKING = [lif, lif_zero, synaptic, recurrent_lif, alif, plif, radlif, snu, izhikevich]
PUBLISHED = [*SPIKING, egru, delta_gru, skip_rnn, gru_reset, gru_d, zoneout_lstm, cfc]
SIZES = [
    Sizes(T=100, B=8, I=700, H=700),  # as speech and digits in spikes come
    Sizes(T=50, B=16, I=40, H=256),
    Sizes(T=20, B=3, I=5, H=13),
    Sizes(T=7, B=1, I=31, H=128),
    Sizes(T=1, B=33, I=3, H=65),
]
