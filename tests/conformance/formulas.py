"""Cells of the conformance suite, each beside its step in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.judge import Clip, Formula, Now
from elman import cell, ops

Own = dict[str, Tensor]
DROP_IN = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def named(step: Any) -> Any:
    """A step of W, R, b, c that takes torch's names, too."""

    def of(own: Own, x: Any, states: Any, now: Now) -> Any:
        W, R, *b = own.values()
        return step(W, R, b, x[0], states, now)

    return of


@named
def gru_step(W, R, b, x, states, now):
    (h,) = states
    xr, xz, xn = (x @ W.T + b[0]).chunk(3, -1)
    hr, hz, hn = (now.seen(h) @ R.T + b[1]).chunk(3, -1)
    z, n = torch.sigmoid(xz + hz), torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    h = (1 - z) * n + z * h
    return [h], [h]


@named
def lstm_step(W, R, b, x, states, now):
    h, c = states
    i, f, g, o = (x @ W.T + now.seen(h) @ R.T + sum(b)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return [h], [h, c]


@named
def rnn_step(W, R, b, x, states, now):
    h = torch.tanh(x @ W.T + now.seen(states[0]) @ R.T + sum(b))
    return [h], [h]


GRU = Formula(gru_step, ("W", "R", "b", "c"))
LSTM = Formula(lstm_step, ("W", "R", "b"), ("h", "c"))
TORCHS = {
    "RNN": Formula(rnn_step, DROP_IN),
    "GRU": Formula(gru_step, DROP_IN),
    "LSTM": Formula(lstm_step, DROP_IN, ("h", "c")),
}


@cell(
    input="x[I], m",
    static="s[S], k",
    state="h[H], n",
    output="y[I], e, h[H]",
    weights="W[H, I], R[H, H], C[I, H], V[H, S], d[H]",
    constants="A[H, H], gain",
    init={"h": 0.5, "n": -1.5, "gain": 0.5, "A": "orthogonal"},
)
def rich(x, m, s, k, h, n, W, R, C, V, d, A, gain):
    """Two inputs, two static ones, constants, states that do not begin with zeros, and three
    outputs: a vector, a scalar, and a state."""
    i = ops.sigmoid(V @ s + d)
    new = ops.tanh(W @ (m * x) + (R * A) @ h + k * n) * i
    n = 0.5 * n + gain * ops.mean(h)
    return C @ new, ops.mean(new * i), new, new, n


def rich_step(own, x, states, now):
    (x, m), (s, k), (h, n) = x, now.static, states
    i = torch.sigmoid(s @ own["V"].T + own["d"])
    move = (m.unsqueeze(-1) * x) @ own["W"].T + h @ (own["R"] * own["A"]).T
    new = torch.tanh(move + (k * n).unsqueeze(-1)) * i
    n = 0.5 * n + own["gain"] * h.mean(-1)
    return [new @ own["C"].T, (new * i).mean(-1), new], [new, n]


RICH = Formula(
    rich_step, ("W", "R", "C", "V", "d", "A", "gain"), ("h", "n"), outputs=(None, None, 0)
)

P, Q, Z, SIZE = 0.3, 0.2, 0.4, 0.1


@cell(input="x[I]", state="h[H], c[H]", weights="W[2H, I], R[2H, H], b[2H]")
def noisy(x, h, c, W, R, b):
    """Everything that a formula can draw, of inputs, states, gates of two blocks, and scalars."""
    a = W @ ops.dropout(x, P) + R @ ops.dropout(h, Q, per="sequence") + b
    i, n = ops.split(ops.tanh(a + SIZE * ops.noise(a)), 2)
    c = ops.zoneout(0.5 * c + i * n, c, Z)
    return ops.zoneout(ops.sin(c + SIZE * ops.uniform(1.0 * ops.sum(x))), h, Z), c


def noisy_step(own, x, states, now):
    (x,), (h, c), H = x, states, states[0].shape[-1]
    drawn = bool(now.keys)
    a = now.kept(x, P, 0) @ own["W"].T + now.kept(h, Q, 1, "sequence") @ own["R"].T + own["b"]
    if drawn:
        radius = torch.sqrt(-2 * torch.log(1 - now.numbers(2, (H, H))))
        a = a + SIZE * radius * torch.cos(2 * torch.pi * now.numbers(3, (H, H)))
    i, n = torch.tanh(a).chunk(2, -1)
    new_c, c_before, h_before = 0.5 * c + i * n, c, h
    if drawn:
        c = torch.where(now.numbers(4, (H,)) < Z, c_before, new_c)
        h = torch.sin(c + SIZE * now.numbers(5, (1,)))
        h = torch.where(now.numbers(6, (H,)) < Z, h_before, h)
    else:
        c = Z * c_before + (1 - Z) * new_c
        h = Z * h_before + (1 - Z) * torch.sin(c + SIZE * 0.5)
    return [h], [h, c]


NOISY = Formula(noisy_step, ("W", "R", "b"), ("h", "c"))


@cell(input="x[I]", state="s[H], m[H]", weights="W[H, I], R[H, H], b[H]")
def spiking(x, s, m, W, R, b):
    """A spike has the derivative of its surrogate; what flows back through s is clipped; a value
    that is rounded has another's gradient."""
    m = 0.8 * m + W @ x + R @ ops.clip_gradient(s, 0.05) + b - 0.5 * s
    return ops.spike(m - 0.3, "triangular"), ops.straight_through(ops.round(8 * m) / 8, m)


class Spike(torch.autograd.Function):
    """1 where v is positive, with the derivative of the triangular surrogate."""

    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        ctx.save_for_forward(v)
        return (v > 0).to(v)

    @staticmethod
    def backward(ctx, d):  # type: ignore[override]
        return d * torch.relu(1 - ctx.saved_tensors[0].abs())

    @staticmethod
    def jvp(ctx, dv):  # type: ignore[override]
        return dv * torch.relu(1 - ctx.saved_tensors[0].abs())


def spiking_step(own, x, states, now):
    s, m = states
    seen = Clip.apply(s, 0.05)
    m = 0.8 * m + x[0] @ own["W"].T + seen @ own["R"].T + own["b"] - 0.5 * s
    rounded = m + ((8 * m).round() / 8 - m).detach()
    s = Spike.apply(m - 0.3)
    return [s], [s, rounded]


SPIKING = Formula(spiking_step, ("W", "R", "b"), ("s", "m"))
