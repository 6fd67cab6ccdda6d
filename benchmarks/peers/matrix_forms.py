"""Layers whose state is a matrix, in torch: a lean loop over steps, and the chunkwise form.

They know nothing of elman. Arguments are [T, N, ..], N samples of all heads; a state [N, K, V] maps
keys to values and begins as zeros. What a step does not need as a matrix is none: products with
diagonal or rank-one matrices are elementwise. Within a chunk, decays are differences of their
summed logarithms; what the steps of a delta rule write solves a triangular system (section 3.3 of
arXiv:2412.06464).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own habit

Leaves = dict[str, Tensor]
Row = tuple[Tensor, ...]
Body = Callable[..., tuple[Tensor, Row]]
Form = Callable[..., Tensor]  # of the leaves, by name: the output [T, N, V]


@dataclass(frozen=True)
class Chunks:
    """The chunkwise form of a cell.

    Attributes:
        size: steps of a chunk.
        begin: from the leaves, tensors that are cut into chunks, and the first state.
        body: of a state and a chunk of each tensor [N, steps, ..], the output and the next state.
    """

    size: int
    begin: Callable[..., tuple[Row, Row]]
    body: Body

    def run(self, body: Body, **leaves: Tensor) -> Tensor:
        """The output of all steps, by the body as it is or as it was compiled."""
        rows, state = self.begin(**leaves)
        out: list[Tensor] = []
        for chunk in zip(*(row.movedim(0, 1).split(self.size, 1) for row in rows), strict=True):
            y, state = body(state, *chunk)
            out.append(y)
        return torch.cat(out, 1).movedim(1, 0)


@dataclass(frozen=True)
class Forms:
    """A cell in torch.

    Attributes:
        draw: leaves of a case: T, N, K, V and a source of random numbers.
        loop: the output of these leaves.
        chunks: the same, if a chunkwise form is known.
        names: of the leaves.
        static: the leaf that is fixed over all steps, if there is one.
        transposed: whether elman's state is [V, K].
    """

    draw: Callable[[int, int, int, int, torch.Generator], Leaves]
    loop: Form
    chunks: Chunks | None
    names: tuple[str, ...]
    static: str = ""
    transposed: bool = False


def _read(S: Tensor, q: Tensor) -> Tensor:
    return (S * q[:, :, None]).sum(1)


def _zeros(keys: Tensor, values: Tensor) -> Tensor:
    """The first state, of keys [T, N, K] and values [T, N, V]."""
    return keys.new_zeros(*keys.shape[1:], values.shape[-1])


def _normal(source: torch.Generator, *size: int) -> Tensor:
    return torch.randn(*size, generator=source)


def _unit(source: torch.Generator, *size: int) -> Tensor:
    return F.normalize(_normal(source, *size), dim=-1)


def _draw_delta(T: int, N: int, K: int, V: int, source: torch.Generator) -> Leaves:
    """Normalised keys and queries, gates near their usual sizes."""
    q, k, v = _unit(source, T, N, K), _unit(source, T, N, K), _normal(source, T, N, V)
    decay = torch.sigmoid(_normal(source, T, N) + 3)
    return {"q": q, "k": k, "v": v, "a": decay, "b": torch.rand(T, N, generator=source)}


def _delta_loop(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> Tensor:
    S, out = q.new_zeros(*q.shape[1:], v.shape[-1]), list[Tensor]()
    for t in range(len(q)):
        S = S * a[t, :, None, None]
        S = S + k[t, :, :, None] * (b[t, :, None] * (v[t] - _read(S, k[t])))[:, None]
        out.append(_read(S, q[t]))
    return torch.stack(out)


def _delta_begin(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor) -> tuple[Row, Row]:
    return (q, k, v, a.log(), b), (_zeros(q, v),)


def _delta_chunk(
    state: Row, q: Tensor, k: Tensor, v: Tensor, logs: Tensor, b: Tensor
) -> tuple[Tensor, Row]:
    (S,), (decay, g), b = state, _decays(logs), b[..., None]
    system = b * (k @ k.mT) * decay
    written = torch.linalg.solve_triangular(
        system.tril(-1), b * (v - g * (k @ S)), upper=False, unitriangular=True
    )
    y = g * (q @ S) + (q @ k.mT * decay) @ written
    return y, (g[:, -1:] * S + (k * decay[:, -1, :, None]).mT @ written,)


def _decays(logs: Tensor) -> tuple[Tensor, Tensor]:
    """From logarithms [N, steps] of the decays of steps: what is left at a step of what an earlier
    one wrote [N, steps, steps], and of what was there before [N, steps, 1]."""
    sums = logs.cumsum(1)
    return (sums[:, :, None] - sums[:, None, :]).tril().exp().tril(), sums.exp()[..., None]


def _draw_gla(T: int, N: int, K: int, V: int, source: torch.Generator) -> Leaves:
    """Gates as published: sigmoids to the power of 1/16."""
    a = torch.sigmoid(_normal(source, T, N, K)) ** (1 / 16)
    keys = {name: _normal(source, T, N, K) / math.sqrt(K) for name in "qk"}
    return {**keys, "v": _normal(source, T, N, V), "a": a}


def _gla_loop(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    S, out = q.new_zeros(*q.shape[1:], v.shape[-1]), list[Tensor]()
    for t in range(len(q)):
        S = S * a[t, :, :, None] + k[t, :, :, None] * v[t, :, None]
        out.append(_read(S, q[t]))
    return torch.stack(out)


def _gla_begin(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> tuple[Row, Row]:
    return (q, k, v, a.log()), (_zeros(q, v),)


def _gla_chunk(state: Row, q: Tensor, k: Tensor, v: Tensor, logs: Tensor) -> tuple[Tensor, Row]:
    (S,), g = state, logs.cumsum(1).exp()
    q, k = q * g, k / g
    return q @ S + (q @ k.mT).tril() @ v, (g[:, -1, :, None] * (S + k.mT @ v),)


def _draw_mamba2(T: int, N: int, K: int, V: int, source: torch.Generator) -> Leaves:
    """Of ``V`` channels and ``K`` states a head; steps and decays as the authors begin."""
    dt = F.softplus(_normal(source, T, N) - 3)
    keys = {name: _normal(source, T, N, K) for name in "BC"}
    A = -(1 + 15 * torch.rand(N, generator=source))
    return {"x": _normal(source, T, N, V), "dt": dt, **keys, "A": A}


def _mamba2_loop(x: Tensor, dt: Tensor, B: Tensor, C: Tensor, A: Tensor) -> Tensor:
    S, out = x.new_zeros(*x.shape[1:], B.shape[-1]), list[Tensor]()
    decay, x = torch.exp(dt * A), x * dt[..., None]
    for t in range(len(x)):
        S = S * decay[t, :, None, None] + x[t, :, :, None] * B[t, :, None]
        out.append((S * C[t, :, None]).sum(2))
    return torch.stack(out)


def _mamba2_begin(x: Tensor, dt: Tensor, B: Tensor, C: Tensor, A: Tensor) -> tuple[Row, Row]:
    return (x * dt[..., None], B, C, dt * A), (_zeros(B, x),)


def _mamba2_chunk(state: Row, x: Tensor, k: Tensor, q: Tensor, logs: Tensor) -> tuple[Tensor, Row]:
    (S,), (decay, g) = state, _decays(logs)
    y = g * (q @ S) + (q @ k.mT * decay) @ x
    return y, (g[:, -1:] * S + (k * decay[:, -1, :, None]).mT @ x,)


def _draw_mlstm(T: int, N: int, K: int, V: int, source: torch.Generator) -> Leaves:
    """Forget gates near 1, as the authors begin."""
    keys = {name: _normal(source, T, N, K) for name in "qk"}
    gates = {"i": _normal(source, T, N), "f": _normal(source, T, N) + 4}
    return {**keys, "v": _normal(source, T, N, V), **gates}


def _mlstm_loop(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    k, logs, m = k / math.sqrt(k.shape[-1]), F.logsigmoid(f), torch.zeros_like(i[0])
    C, n, out = q.new_zeros(*q.shape[1:], v.shape[-1]), torch.zeros_like(q[0]), list[Tensor]()
    for t in range(len(q)):
        top = torch.maximum(logs[t] + m, i[t])
        keep, take = torch.exp(logs[t] + m - top)[:, None], torch.exp(i[t] - top)[:, None]
        m, key = top, take * k[t]
        C, n = keep[:, None] * C + key[:, :, None] * v[t, :, None], keep * n + key
        bottom = torch.maximum((n * q[t]).sum(1).abs(), torch.exp(-m))
        out.append(_read(C, q[t]) / bottom[:, None])
    return torch.stack(out)


def _mlstm_begin(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> tuple[Row, Row]:
    state = _zeros(q, v), torch.zeros_like(q[0]), torch.zeros_like(i[0])
    return (q, k / math.sqrt(k.shape[-1]), v, i, F.logsigmoid(f)), state


def _mlstm_chunk(
    state: Row, q: Tensor, k: Tensor, v: Tensor, i: Tensor, logs: Tensor
) -> tuple[Tensor, Row]:
    C, n, m = state
    sums = logs.cumsum(1)
    before = sums + m[:, None]
    within = sums[:, :, None] - sums[:, None, :] + i[:, None, :]
    within = within.masked_fill(torch.ones_like(within[0]).triu(1).bool(), -math.inf)
    top = torch.maximum(before, within.amax(2))
    keep, weights = torch.exp(before - top), torch.exp(within - top[..., None])
    scores = (q @ k.mT) * weights
    bottom = scores.sum(2) + keep * (q @ n[..., None])[..., 0]
    bottom = torch.maximum(bottom.abs(), torch.exp(-top))
    y = (scores @ v + keep[..., None] * (q @ C)) / bottom[..., None]
    keys, last = k * weights[:, -1, :, None], keep[:, -1, None]
    return y, (last[..., None] * C + keys.mT @ v, last * n + keys.sum(1), top[:, -1])


def _draw_rwkv7(T: int, N: int, K: int, V: int, source: torch.Generator) -> Leaves:
    """Decays between exp(-0.606) and 1, as published; removal keys of norm 1."""
    w = torch.exp(-math.exp(-0.5) * torch.sigmoid(_normal(source, T, N, K) - 2))
    keys = {"r": _normal(source, T, N, K), "w": w, "k": _normal(source, T, N, K) / math.sqrt(K)}
    a = torch.sigmoid(_normal(source, T, N, K))
    return {**keys, "v": _normal(source, T, N, V), "kk": _unit(source, T, N, K), "a": a}


def _rwkv7_loop(r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor) -> Tensor:
    S, out = r.new_zeros(*r.shape[1:], v.shape[-1]), list[Tensor]()
    for t in range(len(r)):
        removed = (a[t] * kk[t])[:, :, None] * _read(S, kk[t])[:, None]
        S = S * w[t, :, :, None] - removed + k[t, :, :, None] * v[t, :, None]
        out.append(_read(S, r[t]))
    return torch.stack(out)


def _rwkv7_begin(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, kk: Tensor, a: Tensor
) -> tuple[Row, Row]:
    return (r, w.log(), k, v, kk, a * kk), (_zeros(r, v),)


def _rwkv7_chunk(
    state: Row, r: Tensor, logs: Tensor, k: Tensor, v: Tensor, removal: Tensor, written: Tensor
) -> tuple[Tensor, Row]:
    (S,), sums = state, logs.cumsum(1)
    before, r = removal * (sums - logs).exp(), r * sums.exp()
    k, written = k * (-sums).exp(), written * (-sums).exp()
    removed = torch.linalg.solve_triangular(
        (before @ written.mT).tril(-1),
        before @ S + (before @ k.mT).tril(-1) @ v,
        upper=False,
        unitriangular=True,
    )
    y = r @ S + (r @ k.mT).tril() @ v - (r @ written.mT).tril() @ removed
    return y, (sums[:, -1, :, None].exp() * (S + k.mT @ v - written.mT @ removed),)


def _draw_m2rnn(T: int, N: int, K: int, V: int, source: torch.Generator) -> Leaves:
    """A recurrent weight of norm about 1, the same of all heads."""
    keys = {name: _normal(source, T, N, K) for name in "qk"}
    W = _normal(source, V, V) / (2 * math.sqrt(V))
    f = torch.sigmoid(_normal(source, T, N))
    return {**keys, "v": _normal(source, T, N, V), "f": f, "W": W}


def _m2rnn_loop(q: Tensor, k: Tensor, v: Tensor, f: Tensor, W: Tensor) -> Tensor:
    S, out = q.new_zeros(*q.shape[1:], v.shape[-1]), list[Tensor]()
    for t in range(len(q)):
        new = torch.tanh(S @ W + k[t, :, :, None] * v[t, :, None])
        S = torch.lerp(new, S, f[t, :, None, None])
        out.append(_read(S, q[t]))
    return torch.stack(out)


_KEYS = ("q", "k", "v")
FORMS: Mapping[str, Forms] = {
    "gated_delta_net": Forms(
        *(_draw_delta, _delta_loop, Chunks(64, _delta_begin, _delta_chunk)), (*_KEYS, "a", "b")
    ),
    "gla": Forms(_draw_gla, _gla_loop, Chunks(64, _gla_begin, _gla_chunk), (*_KEYS, "a")),
    "mamba2": Forms(
        *(_draw_mamba2, _mamba2_loop, Chunks(64, _mamba2_begin, _mamba2_chunk)),
        ("x", "dt", "B", "C", "A"),
        static="A",
        transposed=True,
    ),
    "mlstm": Forms(
        *(_draw_mlstm, _mlstm_loop, Chunks(64, _mlstm_begin, _mlstm_chunk)), (*_KEYS, "i", "f")
    ),
    "rwkv7": Forms(
        *(_draw_rwkv7, _rwkv7_loop, Chunks(32, _rwkv7_begin, _rwkv7_chunk)),
        ("r", "w", "k", "v", "kk", "a"),
    ),
    "m2rnn": Forms(_draw_m2rnn, _m2rnn_loop, None, (*_KEYS, "f", "W"), static="W"),
}
