"""Steps of cells as one writes them in torch, from papers and their authors' code, or by formula.

They know nothing of elman: a step takes one row [B, I] of each input, the states [B, n] and the
weights by name, and gives its output and the next states. Where a paper joins matrices, so do they.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, sigmoid, tanh
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from benchmarks.peers.spiking_steps import STEPS as SPIKING
from benchmarks.peers.spiking_steps import Result, Step, Weights


def ligru(a: Tensor, h: Tensor, w: Weights) -> Result:
    at, zt = (a + h @ w["U"].T).chunk(2, -1)
    z = sigmoid(zt)
    h = z * h + (1 - z) * torch.relu(at)
    return h, (h,)


def fastgrnn(x: Tensor, h: Tensor, w: Weights) -> Result:
    pre = x @ w["W"].T + h @ w["U"].T
    bg, bu = w["b"].chunk(2)
    z, c = sigmoid(pre + bg), tanh(pre + bu)
    h = z * h + (sigmoid(w["zeta"]) * (1 - z) + sigmoid(w["nu"])) * c
    return h, (h,)


def indgru(x: Tensor, h: Tensor, w: Weights) -> Result:
    xr, xz, xn = (x @ w["W"].T + w["b"]).chunk(3, -1)
    ur, uz, un = w["u"].chunk(3)
    r, z = sigmoid(xr + h * ur), sigmoid(xz + h * uz)
    h = z * h + (1 - z) * tanh(xn + r * h * un)
    return h, (h,)


def rhn(x: Tensor, s: Tensor, w: Weights) -> Result:
    matrices, biases = w["R"], w["b"]
    depth = len(biases) // (2 * s.shape[-1])
    for layer, (R, b) in enumerate(zip(matrices.chunk(depth), biases.chunk(depth))):
        pre = s @ R.T + b
        if layer == 0:
            pre = pre + x @ w["W"].T
        candidate, gate = pre.chunk(2, -1)
        s = tanh(candidate) * sigmoid(gate) + s * (1 - sigmoid(gate))
    return s, (s,)


def _lstm(x: Tensor, h: Tensor, c: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
    i, f, g, o = (x @ w["W"].T + h @ w["R"].T + w["b"]).chunk(4, -1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def mogrifier(x: Tensor, h: Tensor, c: Tensor, w: Weights) -> Result:
    of_x, of_h = (w[name].split(n) for name, n in (("Q", x.shape[-1]), ("P", h.shape[-1])))
    for index in range(len(of_x) + len(of_h)):
        if index % 2 == 0:
            x = 2 * sigmoid(h @ of_x[index // 2].T) * x
        else:
            h = 2 * sigmoid(x @ of_h[index // 2].T) * h
    h, c = _lstm(x, h, c, w)
    return h, (h, c)


def onlstm(x: Tensor, h: Tensor, c: Tensor, w: Weights) -> Result:
    """Ordered-Neurons/ON_LSTM.py at 04531c4, but for the order of rows."""
    units = h.shape[-1]
    chunks = (len(w["b"]) - 4 * units) // 2
    pre = x @ w["W"].T + h @ w["R"].T + w["b"]
    i, f, g, o, *master = pre.split([units] * 4 + [chunks] * 2, -1)
    opens, closes = (gate.softmax(-1).cumsum(-1) for gate in master)
    width = units // chunks
    master_in = (1 - opens).repeat_interleave(width, -1)
    master_forget = closes.repeat_interleave(width, -1)
    overlap = master_forget * master_in
    f = sigmoid(f) * overlap + (master_forget - overlap)
    i = sigmoid(i) * overlap + (master_in - overlap)
    c = f * c + i * tanh(g)
    h = sigmoid(o) * tanh(c)
    return h, (h, c)


def gru_layernorm(x: Tensor, h: Tensor, w: Weights) -> Result:
    """GRUCell of dreamerv2/common/nets.py at 6124db4, with Keras's eps of a norm."""
    joined = torch.cat([w["W"], w["R"]], 1)  # Dreamer multiplies [x, h] by one matrix
    gates = F.linear(torch.cat([x, h], -1), joined, w["a"])
    gates = F.layer_norm(gates, gates.shape[-1:], w["g"], w["b"], 1e-3)
    reset, cand, update = gates.chunk(3, -1)
    cand, update = tanh(sigmoid(reset) * cand), sigmoid(update - 1)
    h = update * cand + (1 - update) * h
    return h, (h,)


def antisymmetric(x: Tensor, h: Tensor, w: Weights) -> Result:
    W = w["W"] - w["W"].T - 0.01 * torch.eye(h.shape[-1], dtype=h.dtype)
    h = h + 0.01 * tanh(h @ W.T + x @ w["V"].T + w["b"])
    return h, (h,)


def antisymmetric_gated(x: Tensor, h: Tensor, w: Weights) -> Result:
    W = w["W"] - w["W"].T - 0.01 * torch.eye(h.shape[-1], dtype=h.dtype)
    gate, new = (x @ w["V"].T + w["b"]).chunk(2, -1)
    h = h + 0.01 * sigmoid(h @ W.T + gate) * tanh(h @ W.T + new)
    return h, (h,)


def cornn(x: Tensor, y: Tensor, z: Tensor, w: Weights) -> Result:
    inside = torch.cat((x, z, y), 1) @ torch.cat((w["V"], w["Wz"], w["Wy"]), 1).T + w["b"]
    z = z + 0.042 * (tanh(inside) - 2.7 * y - 4.7 * z)
    y = y + 0.042 * z
    return y, (y, z)


def unicornn(x: Tensor, y: Tensor, z: Tensor, w: Weights) -> Result:
    step = 0.1 * sigmoid(w["c"])
    z = z - step * (tanh(y * w["w"] + x @ w["V"].T + w["b"]) + 1.0 * y)
    y = y + step * z
    return y, (y, z)


def phased_lstm(x: Tensor, t: Tensor, h: Tensor, c: Tensor, w: Weights) -> Result:
    phi = torch.remainder(t[:, None] - w["shift"], w["tau"]) / w["tau"]
    ratio = w["ratio"]
    k = torch.where(
        phi < ratio / 2, 2 * phi / ratio, torch.where(phi < ratio, 2 - 2 * phi / ratio, 0.001 * phi)
    )
    new_h, new_c = _lstm(x, h, c, w)
    h, c = k * new_h + (1 - k) * h, k * new_c + (1 - k) * c
    return h, (h, c)


def t_lstm(x: Tensor, gap: Tensor, h: Tensor, c: Tensor, w: Weights) -> Result:
    short = tanh(c @ w["D"].T + w["d"])
    c = c - short + short / torch.log(math.e + gap[:, None])
    h, c = _lstm(x, h, c, w)
    return h, (h, c)


def gru_d(x: Tensor, mask: Tensor, delta: Tensor, h: Tensor, last: Tensor, w: Weights) -> Result:
    keep = torch.exp(-torch.relu(delta * w["gx"] + w["bx"]))
    observed = mask > 0
    filled = keep * last + (1 - keep) * w["mean"]
    last = torch.where(observed, x, last)
    x = torch.where(observed, x, filled)
    h = torch.exp(-torch.relu(delta @ w["Gh"].T + w["bh"])) * h
    Wr, Wz, Wn = w["W"].chunk(3)
    Rr, Rz, Rn = w["R"].chunk(3)
    Vr, Vz, Vn = w["V"].chunk(3)
    br, bz, bn = w["b"].chunk(3)
    r = sigmoid(x @ Wr.T + h @ Rr.T + mask @ Vr.T + br)
    z = sigmoid(x @ Wz.T + h @ Rz.T + mask @ Vz.T + bz)
    h = (1 - z) * h + z * tanh(x @ Wn.T + (r * h) @ Rn.T + mask @ Vn.T + bn)
    return h, (h, last)


def _backbone(x: Tensor, h: Tensor, w: Weights) -> Tensor:
    v = 1.7159 * tanh(0.666 * (torch.cat((x, h), 1) @ w["A"].T + w["a"]))
    if "B" in w:
        count = len(w["a"])
        for B, d in zip(w["B"].split(count), w["d"].split(count)):
            v = 1.7159 * tanh(0.666 * (v @ B.T + d))
    return v


def cfc(x: Tensor, t: Tensor, h: Tensor, w: Weights, mode: str = "default") -> Result:
    heads = (_backbone(x, h, w) @ w["F"].T + w["f"]).chunk(4, -1)
    first, two, a, b = tanh(heads[0]), tanh(heads[1]), *heads[2:]
    gate = sigmoid(a * t[:, None] + b)
    h = first + gate * two if mode == "no_gate" else first * (1.0 - gate) + gate * two
    return h, (h,)


def cfc_pure(x: Tensor, t: Tensor, h: Tensor, w: Weights) -> Result:
    features = _backbone(x, h, w) @ w["F"].T + w["f"]
    h = (
        -w["scale"] * torch.exp(-t[:, None] * (w["w"].abs() + features.abs())) * features
        + w["scale"]
    )
    return h, (h,)


def slstm(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    n: Tensor,
    m: Tensor,
    w: Weights,
    least: float = 0.0,
    forget: Any = F.logsigmoid,
) -> Result:
    i, f, g, o = (x @ w["W"].T + h @ w["R"].T + w["b"]).chunk(4, -1)
    top = torch.maximum(m + forget(f), i)
    keep, take = torch.exp(m + forget(f) - top), torch.exp(i - top)
    c, n = keep * c + take * tanh(g), keep * n + take
    h = sigmoid(o) * c / n.clamp(min=least)
    return h, (h, c, n, top)


def gru_before(x: Tensor, h: Tensor, w: Weights) -> Result:
    pr, pz, pn = (x @ w["W"].T + w["b"]).chunk(3, -1)
    hr, hz = (h @ w["R"].T).chunk(2, -1)
    z = sigmoid(pz + hz)
    n = tanh(pn + (sigmoid(pr + hr) * h) @ w["U"].T)
    h = (1 - z) * n + z * h
    return h, (h,)


def mgu(x: Tensor, h: Tensor, w: Weights) -> Result:
    f = sigmoid(x @ w["Wf"].T + h @ w["Rf"].T + w["bf"])
    n = tanh(x @ w["Wn"].T + (f * h) @ w["Rn"].T + w["bn"])
    h = (1 - f) * h + f * n
    return h, (h,)


def indrnn(x: Tensor, h: Tensor, w: Weights) -> Result:
    h = torch.relu(x @ w["W"].T + w["b"] + w["u"] * h)
    return h, (h,)


def sru(x: Tensor, h: Tensor, c: Tensor, w: Weights) -> Result:
    u, f, r, skip = (x @ w["W"].T).chunk(4, -1)
    f, r = sigmoid(torch.cat((f, r), -1) + w["v"] * c.repeat(1, 2) + w["b"]).chunk(2, -1)
    c = f * c + (1 - f) * u
    # the output gate reads the state before this step
    h = r * c + (1 - r) * skip
    return h, (h, c)


def paragru(x: Tensor, h: Tensor, w: Weights) -> Result:
    r, z, n = (x @ w["W"].T + w["b"]).chunk(3, -1)
    ur, uz, un = w["u"].chunk(3)
    r, z = sigmoid(r + ur * h), sigmoid(z + uz * h)
    h = (1 - z) * h + z * tanh(n + un * (r * h))
    return h, (h,)


def paralstm(x: Tensor, h: Tensor, c: Tensor, w: Weights) -> Result:
    f, o, g = (x @ w["W"].T + w["b"]).chunk(3, -1)
    uf, uo, ug = w["u"].chunk(3)
    pf, po = w["p"].chunk(2)
    f = sigmoid(f + uf * h + pf * c)
    c = f * c + (1 - f) * tanh(g + ug * h)
    h = sigmoid(o + uo * h + po * c) * tanh(c)
    return h, (h, c)


def positive(n: Tensor) -> Tensor:
    """The exponential of log_g of appendix B.3 of arXiv:2410.01201v3."""
    return torch.where(n >= 0, (torch.relu(n) + 0.5).log(), -F.softplus(-n)).exp()


def mingru(x: Tensor, h: Tensor, w: Weights, g: Any = lambda n: n) -> Result:
    z, n = (x @ w["W"].T + w["b"]).chunk(2, -1)
    h = torch.lerp(h, g(n), sigmoid(z))
    return h, (h,)


def minlstm(x: Tensor, h: Tensor, w: Weights, g: Any = lambda n: n) -> Result:
    f, i, n = (x @ w["W"].T + w["b"]).chunk(3, -1)
    f, i = sigmoid(f), sigmoid(i)
    h = (f * h + i * g(n)) / (f + i)
    return h, (h,)


def lru(x: Tensor, p: Tensor, q: Tensor, w: Weights) -> Result:
    modulus, phase = torch.exp(-torch.exp(w["nu"])), torch.exp(w["theta"])
    a, b = modulus * torch.cos(phase), modulus * torch.sin(phase)
    up, uq = (x @ w["B"].T).chunk(2, -1)
    g = torch.sqrt(1 - modulus * modulus)
    p, q = a * p - b * q + g * up, a * q + b * p + g * uq
    return p @ w["C"].T - q @ w["S"].T + x @ w["D"].T, (p, q)


def s4d(x: Tensor, p: Tensor, q: Tensor, w: Weights) -> Result:
    modes = p.shape[1] // x.shape[1]
    A = torch.complex(-torch.exp(w["log_A_real"]), w["A_imag"])
    decay = torch.exp(A * torch.exp(w["log_dt"]).repeat_interleave(modes))
    C = torch.complex(w["C_real"], w["C_imag"]) * (decay - 1) / A
    h = decay * torch.complex(p, q) + x.repeat_interleave(modes, 1)
    y = 2 * (C * h).real.unflatten(1, (-1, modes)).sum(2)
    return y, (h.real, h.imag)


def s5(x: Tensor, p: Tensor, q: Tensor, w: Weights, pairs: float = 2.0) -> Result:
    """discretize_zoh and apply_ssm of S5/s5/ssm.py: B is discretized before it meets x."""
    A, step = torch.complex(w["A_real"], w["A_imag"]), torch.exp(w["log_step"])
    decay = torch.exp(A * step)
    B = torch.complex(*w["B"].chunk(2)) * ((decay - 1) / A)[:, None]
    h = decay * torch.complex(p, q) + torch.complex(x, torch.zeros_like(x)) @ B.T
    y = pairs * (h @ torch.complex(w["C"], w["S"]).T).real + w["D"] * x
    return y, (h.real, h.imag)


def rglru(x: Tensor, h: Tensor, w: Weights) -> Result:
    u = x @ w["U"].T
    r, i = sigmoid(u @ w["W"].T + w["b"]).chunk(2, -1)
    a = sigmoid(w["decay"]) ** (8 * r)
    h = a * h + torch.sqrt(1 - a * a) * (i * u)
    return h, (h,)


def rwkv4(k: Tensor, v: Tensor, num: Tensor, den: Tensor, top: Tensor, w: Weights) -> Result:
    """Logarithms of weights, by torch's own stable sum."""
    past, later = top + den.log(), top - torch.exp(w["log_w"]) + den.log()
    means = num / den
    here = torch.stack([past, w["u"] + k])
    y = (here.softmax(0) * torch.stack([means, v])).sum(0)
    there = torch.stack([later, k])
    top = torch.maximum(top - torch.exp(w["log_w"]), k)
    den = torch.exp(there.logsumexp(0) - top)
    num = den * (there.softmax(0) * torch.stack([means, v])).sum(0)
    return y, (num, den, top)


def lstm_layernorm(x: Tensor, h: Tensor, c: Tensor, w: Weights) -> Result:
    gates, units = (4 * h.shape[-1],), h.shape[-1:]
    projected = F.layer_norm(F.linear(x, w["W"]), gates, w["gx"], w["b"])
    i, f, g, o = (projected + F.layer_norm(F.linear(h, w["R"]), gates, w["gh"])).chunk(4, -1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    h = sigmoid(o) * tanh(F.layer_norm(c, units, w["gc"], w["bc"]))
    return h, (h, c)


def lstm_peephole(x: Tensor, h: Tensor, c: Tensor, w: Weights) -> Result:
    pi, pf, po = w["p"].chunk(3)
    i, f, g, o = (F.linear(x, w["W"], w["b"]) + F.linear(h, w["R"])).chunk(4, -1)
    i, f = sigmoid(i + pi * c), sigmoid(f + pf * c)
    c = f * c + i * tanh(g)
    h = sigmoid(o + po * c) * tanh(c)
    return h, (h, c)


def lem(x: Tensor, y: Tensor, z: Tensor, w: Weights) -> Result:
    x1, x2, xz, xy = F.linear(x, w["W"], w["b"]).chunk(4, -1)
    r1, r2, rz = F.linear(y, w["R"]).chunk(3, -1)
    step1, step2 = sigmoid(x1 + r1), sigmoid(x2 + r2)
    z = (1 - step1) * z + step1 * tanh(xz + rz)
    y = (1 - step2) * y + step2 * tanh(xy + F.linear(z, w["Q"]))
    return y, (y, z)


def leaky_memory(x: Tensor, h: Tensor, m: Tensor, w: Weights) -> Result:
    f, i, g = (F.linear(x, w["W"], w["b"]) + F.linear(h, w["R"])).chunk(3, -1)
    f, i = sigmoid(f), sigmoid(i)
    m = f * m + (1 - f) * tanh(g)
    h = i * torch.relu(m) + (1 - i) * h
    return h, (h, m)


STEPS: dict[str, Step] = SPIKING | {
    step.__name__: step
    for step in (
        *(gru_before, mgu, indrnn, sru, paragru, paralstm, mingru, minlstm, lru, s5, slstm),
        *(ligru, fastgrnn, indgru, rhn, mogrifier, onlstm),
        *(gru_layernorm, rglru, rwkv4, antisymmetric, antisymmetric_gated, cornn, unicornn),
        *(phased_lstm, t_lstm, gru_d, cfc, cfc_pure),
        *(lstm_layernorm, lstm_peephole, lem, leaky_memory),
    )
}
