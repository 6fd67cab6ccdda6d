"""Cells with matrices per sample whose rows or columns have several parts."""

from __future__ import annotations

from elman import cell
from elman.ops import abs as absolute
from elman.ops import (
    amax,
    columns,
    concat,
    cos,
    exp,
    outer,
    shift,
    sigmoid,
    sin,
    softmax,
    split,
    tanh,
    var,
)
from elman.ops import sum as total


@cell(input="q[K], k[K], v[V]", state="S[2K, V], z[2K]", output="y[V]")
def hedgehog(q, k, v, S, z):
    """Linear attention with the features and the normaliser of Hedgehog.

    Source: Zhang et al. 2024, arXiv:2402.04347.
    """
    f, p = (concat(softmax(a), softmax(-a)) for a in (q, k))
    S, z = S + outer(p, v), z + p
    return S.T @ f / total(f * z), S, z


@cell(input="x[I], g", state="S[2K, V], z[2K]", output="y[V]", weights="Q[K, I], R[K, I], W[V, I]")
def random_features(x, g, S, z, Q, R, W):
    """Gated attention by random features (Peng et al. 2021, arXiv:2103.02143)."""
    g, p = sigmoid(g), concat(sin(R @ x), cos(R @ x))
    S = g * S + (1 - g) * outer(p, W @ x)
    z = g * z + (1 - g) * p
    f = concat(sin(Q @ x), cos(Q @ x))
    return S.T @ f / (1 + absolute(total(f * z))), S, z


@cell(
    input="q[K], p[P], v[V]",
    state="S[V, 2K+P], n[2K+P]",
    output="m[2K+P], y[V]",
    weights="W[V, 2K+P], M[2K+P, V], N[2K+P, K+P], c[2K+P]",
)
def wide(q, p, v, S, n, W, M, N, c):
    """Parts of unlike widths along the columns: weights at each element, products with weights,
    each reduction, what is read cut and joined again."""
    f = concat(tanh(q), exp(-q), p)
    read = 0.2 * (S.T @ v)
    a, d, b = split(read, "K, K, P")
    S = 0.7 * S + outer(v, f - 0.1 * read) * (1 + 0.1 * W) - 0.1 * columns(n * c) * tanh(S)
    S = S + 0.1 * outer(S @ read + S @ c, concat(a, d, b)) + 0.05 * (S @ N) @ N.T
    n = 0.5 * n + tanh(amax(S, axis=0) + var(S, axis=0)) + M @ v
    m = softmax(S, axis=0).T @ v + softmax(S, axis=1).T @ v + total(W, axis=0)
    return concat(d * a, q, b) + m * f, S @ n + S @ f, S, n


@cell(
    input="q[K], p[P], v[V], A[K, V]",
    state="S[2K, V], U[P, V]",
    output="y[2K+P], Z[V, 2K+P]",
    weights="W[K, V]",
)
def stacked(q, p, v, A, S, U, W):
    """Rows of matrices that are joined and split: of inputs, weights, states."""
    all_rows = 0.5 * concat(S, U) + outer(concat(q, -q, p), v) + concat(A, tanh(W), U)
    upper, lower = split(all_rows, "2K, P")
    first, second = split(upper, 2)
    S = concat(tanh(second), 0.5 * first * A)
    return all_rows @ v, shift(all_rows.T, concat(q, q, p)), S, sigmoid(lower)


@cell(input="q[8], v[V]", state="S[8, V]", output="y[8]")
def numbered(q, v, S):
    """Numbers that vectors cut and matrices do not."""
    a, b = split(q, 2)
    S = 0.5 * S + outer(concat(tanh(b), a), v)
    c, d = split(S @ v, 2)
    return concat(c * d, total(split(S, 2)[1], axis=1)) * q, S


PARTS = (hedgehog, random_features, wide, stacked, numbered)
PARTS_SIZES = {  # by name, as ``Recurrent`` takes them
    "hedgehog": {"input_size": 3, "hidden_size": 5},
    "random_features": {"input_size": 4, "hidden_size": 5, "K": 3},
    "wide": {"input_size": 3, "hidden_size": 8, "P": 2, "V": 5},
    "stacked": {"input_size": 3, "hidden_size": 5, "P": 2},
    "numbered": {"input_size": 8, "hidden_size": 5},
}
