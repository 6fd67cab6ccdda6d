"""Steps of cells whose state is a matrix, as papers write them: with matrices, or as gradients.

They know nothing of elman: a step takes one row of each input, what is fixed (static inputs
[B, ..], weights), and the states, and gives its output and the next states. A state S [B, K, V]
maps keys to values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

Row = tuple[Tensor, ...]
MatrixStep = Callable[[Row, Row, Row], tuple[Tensor, Row]]


def _outer(k: Tensor, v: Tensor) -> Tensor:
    return k[:, :, None] * v[:, None, :]


def _read(S: Tensor, q: Tensor) -> Tensor:
    return (S.mT @ q[:, :, None])[:, :, 0]


def _wide(scalar: Tensor) -> Tensor:
    return scalar[:, None, None]


def linear_attention(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    (q, k, v), (S, z) = inputs, states
    q, k = F.elu(q) + 1, F.elu(k) + 1
    S, z = S + _outer(k, v), z + k
    return _read(S, q) / ((q * z).sum(1, keepdim=True) + 1e-6), (S, z)


def retention(inputs: Row, static: Row, states: Row) -> tuple[Tensor, Row]:
    (q, k, v), (decay,), (S,) = inputs, static, states
    S = _wide(decay) * S + _outer(k, v)
    return _read(S, q), (S,)


def gla(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    (q, k, v, a), (S,) = inputs, states
    S = torch.diag_embed(a) @ S + _outer(k, v)
    return _read(S, q), (S,)


def hgrn2(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    (q, f, v), (S,) = inputs, states
    S = torch.diag_embed(f) @ S + _outer(1 - f, v)
    return _read(S, q), (S,)


def gated_slot_attention(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    (q, k, v, a), (W, U) = inputs, states
    keep = torch.diag_embed(a)
    U, W = keep @ U + _outer(1 - a, k), keep @ W + _outer(1 - a, v)
    return _read(W, (U @ q[:, :, None])[:, :, 0].softmax(1)), (W, U)


def _householder(k: Tensor, b: Tensor) -> Tensor:
    """I - b k k'."""
    return torch.eye(k.shape[1], dtype=k.dtype) - _wide(b) * _outer(k, k)


def delta_net(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    (q, k, v, b), (S,) = inputs, states
    S = _householder(k, b) @ S + _wide(b) * _outer(k, v)
    return _read(S, q), (S,)


def gated_delta_net(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    (q, k, v, a, b), (S,) = inputs, states
    S = _wide(a) * (_householder(k, b) @ S) + _wide(b) * _outer(k, v)
    return _read(S, q), (S,)


def kda(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    (q, k, v, a, b), (S,) = inputs, states
    S = _householder(k, b) @ torch.diag_embed(a) @ S + _wide(b) * _outer(k, v)
    return _read(S, q), (S,)


def gated_delta_net2(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    (q, k, v, a, b, w), (S,) = inputs, states
    erase = torch.eye(k.shape[1], dtype=k.dtype) - _outer(k, b * k)
    S = erase @ torch.diag_embed(a) @ S + _outer(k, w * v)
    return _read(S, q), (S,)


def gated_delta_product(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    """The product of the Householder matrices, and what each step writes, by those behind it."""
    (q, k, v, a, b), (S,) = inputs, states
    steps = b.shape[1]
    product, written = torch.eye(q.shape[1], dtype=q.dtype), torch.zeros_like(S)
    for key, value, strength in zip(k.chunk(steps, 1), v.chunk(steps, 1), b.unbind(1)):
        reflection = _householder(key, strength)
        product = reflection @ product
        written = reflection @ written + _wide(strength) * _outer(key, value)
    S = _wide(a) * (product @ S) + written
    return _read(S, q), (S,)


def fast_weights(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    """What the key stood for is taken out, and a mixture of that and the value is put in."""
    (q, k, v, b), (S,) = inputs, states
    q, k = ((F.elu(x) + 1) / (F.elu(x) + 1).sum(1, keepdim=True) for x in (q, k))
    known = _read(S, k)
    mixed = b[:, None] * v + (1 - b[:, None]) * known
    S = S + _outer(k, mixed) - _outer(k, known)
    return _read(S, q), (S,)


def rwkv6(inputs: Row, static: Row, states: Row) -> tuple[Tensor, Row]:
    (r, k, v, w), (u,), (S,) = inputs, static, states
    y = _read(S + torch.diag_embed(u) @ _outer(k, v), r)
    return y, (torch.diag_embed(w) @ S + _outer(k, v),)


def rwkv7(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    """In the paper's order: the matrix [V, K] is multiplied from the right."""
    (r, w, k, v, kk, a), (S,) = inputs, states
    wkv = S.mT @ (torch.diag_embed(w) - _outer(kk, a * kk)) + _outer(v, k)
    return (wkv @ r[:, :, None])[:, :, 0], (wkv.mT,)


def longhorn(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    (x, q, k, b), (S,) = inputs, states
    step = b / (1 + b * (k * k).sum(1, keepdim=True))
    S = S - _outer(step, k * k) * S + _outer(step * x, k)
    return (S @ q[:, :, None])[:, :, 0], (S,)


def mamba(inputs: Row, fixed: Row, states: Row) -> tuple[Tensor, Row]:
    (x, dt, B, C), (A_log,), (S,) = inputs, fixed, states
    decay = torch.exp(torch.einsum("bd,dn->bdn", dt, -torch.exp(A_log)))
    S = decay * S + (dt * x)[:, :, None] * B[:, None]
    return (S @ C[:, :, None])[:, :, 0], (S,)


def plastic_rnn(inputs: Row, fixed: Row, states: Row) -> tuple[Tensor, Row]:
    """Synapse by synapse: R and alpha [H, H], the trace of each [B, H, H]."""
    (x,), (W, R, alpha, b, eta), (h, trace) = inputs, fixed, states
    weights = R + alpha * trace
    new = torch.tanh(x @ W.T + (weights * h[:, None]).sum(2) + b)
    return new, (new, eta * _outer(new, h) + (1 - eta) * trace)


def mamba2(inputs: Row, static: Row, states: Row) -> tuple[Tensor, Row]:
    (x, dt, B, C), (A,), (S,) = inputs, static, states
    S = _wide(torch.exp(dt * A)) * S + _wide(dt) * _outer(x, B)
    return (S @ C[:, :, None])[:, :, 0], (S,)


def mamba3(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    """B and C as complex numbers, turned by the sum of all angles."""
    (x, dt, A, trap, theta, B, C), (S, phase, last_B, last_x) = inputs, states
    phase = (phase + dt[:, None] * theta) % (2 * math.pi)
    rotation = torch.polar(torch.ones_like(phase), phase)
    modes = [torch.complex(*v.chunk(2, 1)) * rotation for v in (B, C)]
    B, C = (torch.cat([mode.real, mode.imag], 1) for mode in modes)
    alpha = torch.exp(dt * A)
    beta, gamma = (1 - trap) * dt * alpha, trap * dt
    S = _wide(alpha) * S + _wide(beta) * _outer(last_x, last_B) + _wide(gamma) * _outer(x, B)
    return (S @ C[:, :, None])[:, :, 0], (S, phase, B, x)


def mlstm(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    (q, k, v, i, f), (C, n, m) = inputs, states
    k = k / math.sqrt(k.shape[1])
    top = torch.maximum(F.logsigmoid(f) + m, i)
    keep, take = torch.exp(F.logsigmoid(f) + m - top), torch.exp(i - top)
    C = _wide(keep) * C + _wide(take) * _outer(k, v)
    n = keep[:, None] * n + take[:, None] * k
    bottom = torch.maximum((n * q).sum(1).abs(), torch.exp(-top))
    return _read(C, q) / bottom[:, None], (C, n, top)


def m2rnn(inputs: Row, static: Row, states: Row) -> tuple[Tensor, Row]:
    (q, k, v, f), (W,), (S,) = inputs, static, states
    S = torch.lerp(torch.tanh(torch.baddbmm(_outer(k, v), S, W)), S, _wide(f))
    return _read(S, q), (S,)


def lstmn(inputs: Row, weights: Row, states: Row) -> tuple[Tensor, Row]:
    """One row of the tapes after the other."""
    (x,), (W, R, b, A, B, C, v), (hidden, memory, past) = inputs, weights, states
    scores = [torch.tanh(F.linear(h, A) + past @ B.T + x @ C.T) @ v for h in hidden.unbind(1)]
    shares = torch.stack(scores, 1).softmax(1).unbind(1)
    past = sum((s[:, None] * h for s, h in zip(shares, hidden.unbind(1))), torch.zeros_like(past))
    c = sum((s[:, None] * m for s, m in zip(shares, memory.unbind(1))), torch.zeros_like(past))
    i, f, o, g = F.linear(torch.cat([x, past], 1), torch.cat([W, R], 1), b).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    tapes = (torch.cat([tape[:, 1:], new[:, None]], 1) for tape, new in ((hidden, h), (memory, c)))
    return h, (*tapes, past)


def ltc(inputs: Row, weights: Row, states: Row) -> tuple[Tensor, Row]:
    """Six steps of the solver of ncps; synapses [source, target]."""
    (x, dt), (v,) = inputs, states
    mu, sigma, w, erev, mu_x, sigma_x, w_x, erev_x, cm, gleak, vleak, mask, mask_x = weights
    sensed = mask_x * F.softplus(w_x) * torch.sigmoid(sigma_x * (x[:, :, None] - mu_x))
    capacity, leak = F.softplus(cm) / (dt / 6)[:, None], F.softplus(gleak)
    for _ in range(6):
        active = mask * F.softplus(w) * torch.sigmoid(sigma * (v[:, :, None] - mu))
        numerator = capacity * v + leak * vleak
        numerator = numerator + (active * erev).sum(1) + (sensed * erev_x).sum(1)
        v = numerator / (capacity + leak + active.sum(1) + sensed.sum(1) + 1e-8)
    return v, (v,)


def mc_lstm(inputs: Row, weights: Row, states: Row) -> tuple[Tensor, Row]:
    (a, m), (W, b, B), (c,) = inputs, weights, states
    gates = F.linear(torch.cat([a, c / c.sum(1, keepdim=True)], 1), W, b)
    i, o, source, target = gates.chunk(4, 1)
    R = (B * _outer(source, target)).softmax(-1)
    c = torch.bmm(c[:, None], R)[:, 0] + m[:, None] * i.softmax(1)
    h = torch.sigmoid(o) * c
    return h, (c - h,)


def _gradients(loss: Tensor, *of: Tensor) -> Row:
    return torch.autograd.grad(loss, of, create_graph=True)


def titans(inputs: Row, _: Row, states: Row) -> tuple[Tensor, Row]:
    (q, k, v, theta, eta, alpha), (M, S) = inputs, states
    (surprise,) = _gradients((_read(M, k) - v).square().sum(), M)
    S = _wide(eta) * S - _wide(theta) * surprise
    M = _wide(1 - alpha) * M + S
    return _read(M, q), (M, S)


def ttt_linear(inputs: Row, static: Row, states: Row) -> tuple[Tensor, Row]:
    (q, k, v, eta), (g, b), (W, c) = inputs, static, states

    def model(x: Tensor, W: Tensor, c: Tensor) -> Tensor:
        return x + g * F.layer_norm(_read(W, x) + c, c.shape[1:], eps=1e-6) + b

    dW, dc = _gradients((model(k, W, c) - v).square().sum() / 2, W, c)
    W, c = W - _wide(eta) * dW, c - eta[:, None] * dc
    return model(q, W, c), (W, c)


STEPS: dict[str, MatrixStep] = {
    step.__name__: step
    for step in (
        *(linear_attention, retention, gla, hgrn2, gated_slot_attention, mamba, mamba2, rwkv6),
        *(mamba3, plastic_rnn),
        *(delta_net, gated_delta_net, kda, gated_delta_net2, gated_delta_product),
        *(fast_weights, rwkv7, longhorn, titans, ttt_linear),
        *(mlstm, m2rnn, lstmn, ltc, mc_lstm),
    )
}
