"""Cells that the project has never seen, each odd in its own way; engine c has to run them all."""

from __future__ import annotations

from elman import cell, cells
from elman.ops import (
    abs,
    amax,
    atan,
    clip,
    concat,
    cumsum,
    elu,
    exp,
    expm1,
    floor,
    gelu,
    hardmax,
    layer_norm,
    log,
    maximum,
    mean,
    relu,
    round,
    sigmoid,
    softmax,
    softplus,
    spike,
    split,
    spread,
    sqrt,
    stop_gradient,
    straight_through,
    sum,
    tanh,
    var,
    where,
)
from helpers import Sizes


@cell(
    input="x[I], k[H]",
    state="h[H], s[P], q[H]",
    weights="W[H, I], U[H, 2], V[2, H], S[P, H], g[H], b[H]",
)
def three_states(x, k, h, s, q, W, U, V, S, g, b):
    """Two sizes of states, q never read by the next step, a low-rank product, a norm, a choice."""
    a = g * layer_norm(W @ x + U @ (V @ h)) + b
    h = where(a > 0.1, tanh(a), k * h)
    s = 0.5 * s + tanh(S @ h)
    return h, s, sigmoid(a)


@cell(input="x[I]", state="h[H], c[H]", weights="W[4H, I+H], b[4H]")
def joined(x, h, c, W, b):
    """An LSTM with one matrix over input and state."""
    i, f, g, o = split(W @ concat(x, h) + b, 4)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


@cell(input="x[I], m", state="h[H]", weights="W[H, I], R[H, H], b[H]")
def reset(x, m, h, W, R, b):
    """A scalar per sample resets the state before its product."""
    h = (1 - m) * h
    return tanh(W @ x + R @ h + b)


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], b[H]")
def highway(x, h, W, R, b):
    """The projection is used twice."""
    p = W @ x
    t = sigmoid(p + R @ h + b)
    return t * tanh(p) + (1 - t) * h


@cell(
    input="x[I]",
    state="h[H]",
    output="y[P]",
    weights="nu[H], W[H, I], C[P, H], D[P, I]",
    init={"nu": 0.5},
)
def readout(x, h, nu, W, C, D):
    """A linear recurrence with a decay of the weights alone, and an output that is no state."""
    h = exp(-exp(nu)) * h + W @ x
    return C @ h + D @ x, h


@cell(input="x[I]", state="c[H]", output="h[H]", weights="W[3H, I], v[2H], b[2H]")
def sru(x, c, W, v, b):
    """The state's own recurrence is elementwise; the output needs no product."""
    u, f, r = split(W @ x, 3)
    vf, vr = split(v, 2)
    bf, br = split(b, 2)
    f = sigmoid(f + vf * c + bf)
    r = sigmoid(r + vr * c + br)
    c = f * c + (1 - f) * u
    return r * tanh(c), c


@cell(input="x[I]", state="h[H], c[P]", weights="W[4P, I], R[4P, H], b[4P], Q[H, P]")
def projected(x, h, c, W, R, b, Q):
    """An LSTM whose output is projected."""
    i, f, g, o = split(W @ x + R @ h + b, 4)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return Q @ (sigmoid(o) * tanh(c)), c


@cell(input="x[I]", state="h[2H]", weights="W[2H, I], R[H, H], a[H]")
def halves(x, h, W, R, a):
    """A state of two gate blocks; one matrix is used plain and transposed."""
    re, im = split(h, 2)
    u, v = split(W @ x, 2)
    return concat(tanh(a * re - R @ im + u), tanh(a * im + R.T @ re + v))


@cell(input="x[H]", state="h[H]", weights="W[H, H], mask[H, H], s")
def tied(x, h, W, mask, s):
    """One masked matrix for input and state, scaled by a scalar weight."""
    own = W * mask
    return tanh(s * (own @ x) + own @ h)


@cell(input="x[I]", state="h[H]", weights="K[P, I], Q[P, H], V[H, P]")
def attending(x, h, K, Q, V):
    """A softmax over slots, and a norm over two joined vectors."""
    p = softmax(K @ x + Q @ h)
    both = layer_norm(concat(V @ p, h), groups=2)
    a, b = split(both, 2)
    return h + 0.1 * tanh(a) + 0.1 * tanh(b)


@cell(input="x[I]", state="h[H], n", weights="W[H, I], R[H, H]")
def counting(x, h, n, W, R):
    """A scalar state, sums over units, rarely used ops, and a path without gradient."""
    a = W @ x + R @ h
    n = 0.5 * n + tanh(mean(a)) * 0.1
    e = sqrt(1 + a * a) - log(2 + abs(a)) + 0.1 * gelu(a) + 0.1 * softplus(a)
    h = clip(0.5 * e + n, -1.5, 1.5) * sigmoid(stop_gradient(sum(a)) * 0.1)
    return maximum(relu(h), 0.1 * h), n


@cell(input="x[2P]", state="h[P], s[P], d[P]", weights="b[P]")
def delays(x, h, s, d, b):
    """States that only move, a state that is a weight, and half an input that nobody reads."""
    a, _ = split(x, 2)
    return tanh(a + d), h, b


@cell(input="m", state="s", weights="w, v")
def scalars(m, s, w, v):
    """Everything is a scalar."""
    return tanh(w * s + v * m)


@cell(input="x[I], k[H]", state="h[H], q[H]", weights="W[H, I], A[H, H], B[H, H], C[H, H]")
def reused(x, k, h, q, W, A, B, C):
    """Each matrix plain and transposed at one operand with one cotangent: on an input, on a state,
    on both; which use comes first differs."""
    a = tanh(A @ k - A.T @ k + W @ x)
    b = tanh(W @ x + B.T @ h - B @ h)
    c = sigmoid(C @ k + C.T @ h - C @ h + W @ (W.T @ a))
    return c * a + (1 - c) * h, 0.5 * b + 0.5 * q


@cell(
    input="x[I]",
    state="h[H], c[H]",
    output="y[P], e, u[H], k[H], g[H]",
    weights="W[H, I], R[H, H], C[P, H], b[H]",
)
def several(x, h, c, W, R, C, b):
    """Five outputs: behind the loop, a scalar, of the input alone, a state, of weights alone."""
    u = W @ x + b
    c = 0.5 * c + tanh(u + R @ h)
    h = tanh(c)
    return C @ h, mean(c * c), u, c, sigmoid(b), h, c


@cell(input="x[I]", state="h[H], z[8]", weights="W[3H, I], R[3H, H], U[8, H], u[4], V[H, 8]")
def grouped(x, h, z, W, R, U, u, V):
    """Norms and softmaxes of groups of units, gate blocks and numbers; what groups have in common
    is a state and meets weights; a root mean square."""
    a, g, b = split(layer_norm(W @ x + R @ h, groups=12, eps=0.1), 3)
    p = softmax(a * g, groups=4)
    z = softmax(U @ h + z, groups=4)
    own = u * sum(p * b, groups=4) + var(z, groups=4)
    h = h / spread(sqrt(0.5 + mean(h * h, groups=2)), h)
    return tanh(b + spread(own, h) + V @ z) * h, z


@cell(input="x[I]", state="h[H], s[H]", weights="W[2H, I], R[2H, H], w[H]")
def latents(x, h, s, W, R, w):
    """The first largest of groups, and of several gate blocks; a gradient to the largest; running
    sums over gate blocks, forward and backward; and all of it of weights alone."""
    both = W @ x + R @ h
    a, b = split(both, 2)
    soft = softmax(a, groups=3)
    pick = hardmax(a, groups=3) + (soft - stop_gradient(soft))
    first, second = split(hardmax(both), 2)
    c, d = split(cumsum(softmax(both)), 2)
    own = spread(amax(b, groups=3), b) * cumsum(softmax(w, groups=3)) * hardmax(w)
    h = tanh(pick + b * c - d * amax(both) * first + second * h + own)
    return h, 0.5 * s + cumsum(0.1 * h)


@cell(input="x[I]", state="h[H], s[H], m", weights="W[H, I], R[H, H], Q[H, H]")
def holding(x, h, s, m, W, R, Q):
    """Two states that only hold a value, read by a product, a reduction and as factors."""
    g = sigmoid(W @ x + Q @ s)
    return tanh(R @ (g * h) + m * s + mean(s)), s, m


@cell(input="x[I]", state="h[2H], s[H]", weights="W[H, I], R[H, H], Q[H, H]")
def half(x, h, s, W, R, Q):
    """A state of which one gate block changes, and one that nothing reads."""
    a, b = split(h, 2)
    return concat(tanh(W @ x + R @ (a * b) + Q @ b), b), s


@cell(input="x[I]", state="s[H], h[H]", weights="W[H, I], R[H, H], Q[P, H]", output="y[P]")
def epilogue(x, s, h, W, R, Q):
    """Read after the loop, by the output's product."""
    h = tanh(W @ x + R @ h) * s
    return Q @ (h * s), s, h


@cell(input="x[I]", state="s[H], h[H]", weights="W[H, I], R[H, H]")
def output(x, s, h, W, R):
    """It is the output of every step."""
    return s, tanh(W @ x + R @ h) * s


HOLDING = (holding, half, epilogue, output)


# cell -> its sizes; T and B are awkward too; last the library's that have dims of their own
@cell(input="x[I]", state="h[H], s[H]", weights="W[H, I], R[H, H], w[H]")
def functions(x, h, s, W, R, w):
    """Whole numbers, powers, remainders, and values with another derivative than their own."""
    v = W @ x + R @ h
    s = spike(0.5 * s + v - 0.3, "triangular")
    kept = atan(v) + expm1(-abs(v)) + 0.1 * floor(3 * v) + 0.1 * round(2 * v + 0.1)
    power = (1 + v * v) ** w + (3 + tanh(v)) ** -1.5
    return tanh(kept + power + v % (1.5 + w * w) + elu(v) * s), straight_through(s, tanh(v))


@cell(input="x[I]", state="h[H], m", weights="W[H, I], R[H, H]")
def of_heads(x, h, m, W, R):
    """Groups, sums and a scalar state that each head has of its own; by itself it is no row."""
    h = tanh(W @ x + R @ softmax(h, groups=3) * exp(-m)) + h / h.shape[0]
    return cumsum(0.5 * h), 0.5 * m + mean(h)


UNSEEN = {
    three_states: Sizes(T=6, B=3, I=5, H=13, more=(("P", 7),)),
    joined: Sizes(T=5, B=4, I=3, H=11),
    reset: Sizes(T=7, B=3, I=4, H=17),
    highway: Sizes(T=6, B=2, I=5, H=9),
    readout: Sizes(T=9, B=3, I=5, H=11, more=(("P", 3),)),
    sru: Sizes(T=6, B=5, I=7, H=10),
    projected: Sizes(T=5, B=3, I=4, H=9, more=(("P", 13),)),
    halves: Sizes(T=5, B=3, I=3, H=14),
    tied: Sizes(T=4, B=5, I=11, H=11),
    functions: Sizes(T=5, B=3, I=4, H=11),
    attending: Sizes(T=5, B=3, I=5, H=12, more=(("P", 19),)),
    counting: Sizes(T=6, B=3, I=4, H=13),
    delays: Sizes(T=6, B=3, I=10, H=5),
    reused: Sizes(T=5, B=3, I=4, H=11),
    grouped: Sizes(T=3, B=3, I=4, H=12),
    latents: Sizes(T=3, B=3, I=4, H=9),
    scalars: Sizes(T=6, B=5, I=0, H=0),
    several: Sizes(T=5, B=3, I=4, H=10, more=(("P", 3),)),
    holding: Sizes(T=5, B=3, I=4, H=11),
    cells.ealstm: Sizes(T=6, B=3, I=5, H=12, more=(("S", 4),)),
    cells.lmu: Sizes(T=7, B=3, I=4, H=9, more=(("M", 6),)),
    cells.onlstm_chunked: Sizes(T=3, B=3, I=4, H=12, more=(("M", 4),)),
}
