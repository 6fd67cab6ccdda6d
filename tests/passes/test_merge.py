"""Steps merged into one, for cells whose matrices per sample are affine in their states."""

from __future__ import annotations

import random

import pytest
import torch

from elman import cell, compiler
from elman.engines.arrays import Arrays
from elman.ir.evaluate import evaluate
from elman.ir.graph import Node, walk
from elman.ir.ops import ACCUMULATED
from elman.ir.printer import show_graph
from elman.ir.types import is_matrix, shape_size
from elman.nn.options.base import RULES
from elman.ops import columns, exp, maximum, mean, outer, rows, sigmoid, softmax, tanh
from elman.ops import sum as total
from elman.passes import merge
from elman.passes.merge import merge_steps
from graph_verify import verified
from products import every

DIMS = {"K": 3, "V": 4}
BATCH = 2


@cell(input="q[K], k[K], v[V], a, b", state="S[K, V]", output="y[V]")
def delta(q, k, v, a, b, S):
    """The gated delta rule."""
    S = a * S
    S = S + outer(k, b * (v - S.T @ k))
    return S.T @ q, S


@cell(input="q[K], k[K], v[V], g[K], c[V]", state="S[K, V]", output="y[V], z[K], t, u")
def decayed(q, k, v, g, c, S):
    """A decay for each row and each column, every sum, a division, a difference."""
    S = rows(sigmoid(g)) * S * columns(sigmoid(c)) - outer(k, v) / (1 + total(k * k)) + 0.5
    y = mean(S, axis=0) - total(columns(c) * S, axis=0)
    return S.T @ q + y, S @ v, total(S), mean(S), 0 - (0 - S)


@cell(
    input="q[K], k[K], v[V], f, i",
    state="C[K, V], n[K], m",
    output="y[V]",
    weights="W[V, V], d[K], P[K, V]",
)
def stabilised(q, k, v, f, i, C, n, m, W, d, P):
    """Vectors and scalars beside the matrix, products with weights, a normaliser."""
    top = maximum(f + m, i)
    C = exp(f + m - top) * C + exp(i - top) * outer(k * d, W @ v)
    n = exp(f + m - top) * n + exp(i - top) * k
    return C.T @ q / maximum(total(n * q), 1.0) + P.T @ n, C, n, top


@cell(input="q[K], k[K], v[V], a, e", state="S[K, V], M[K, V]", output="y[V]")
def momentum(q, k, v, a, e, S, M):
    """Two matrices, the second in the first."""
    M = e * M - outer(k, S.T @ k - v)
    S = a * S + M
    return S.T @ softmax(q), S, M


AFFINE = [delta, decayed, stabilised, momentum]
# the last states of the first are what the second draws, whatever the batch
NOT_AFFINE = {
    "an elementwise function": lambda k, v, S: (S.T @ k, tanh(S) + outer(k, v)),
    "a product of two": lambda k, v, S: (S.T @ k, S * S + outer(k, v)),
    "a matrix as the output": lambda k, v, S: (S.T @ k + total(S * S), S),
}


def drawn(leaf: Node, source: torch.Generator, batch: int) -> torch.Tensor:
    """Random numbers of a leaf: of weights in their shape, of others with a batch."""
    lead = () if leaf.op == "weight" else (batch,)
    size = (*lead, *shape_size(leaf.shape, DIMS))
    return torch.rand(size, generator=source, dtype=torch.float64) - 0.3


def assert_merges(graph, count: int, *, flags: bool = False) -> None:
    """``count`` steps are the merged step: outputs of all, and the last states. With ``flags``
    scalar inputs are 0 or 1."""
    several = merge_steps(graph, count)
    assert several is not None
    verified(several)
    source, arrays = (
        torch.Generator().manual_seed(count),
        Arrays(torch.float64, torch.device("cpu")),
    )
    values = {leaf: drawn(leaf, source, BATCH) for leaf in several.leaves}
    if flags:
        whole = {leaf: (values[leaf] > 0.2).double() for leaf in several.inputs if not leaf.shape}
        values |= whole
    got = evaluate(arrays, several.roots, dict(values), DIMS)
    states = [values[leaf] for leaf in several.states]
    weights = {leaf: values[leaf] for leaf in graph.weights}
    outputs = []
    for step in range(count):
        inputs = several.inputs[step * len(graph.inputs) :][: len(graph.inputs)]
        row = dict(zip(graph.inputs, (values[leaf] for leaf in inputs), strict=True))
        row |= weights | dict(zip(graph.states, states, strict=True))
        roots = evaluate(arrays, graph.roots, row, DIMS)
        states = list(roots[: len(states)])
        outputs += roots[len(states) :]
    for value, want in zip(got, [*states, *outputs], strict=True):
        torch.testing.assert_close(value, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("of", AFFINE)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_values_are_kept(of, count):
    """Of several steps at once as of one after another."""
    assert_merges(compiler.graph_of(of), count)


@pytest.mark.parametrize("rule", ["reset", "reset_to_initial", "reset_to_learned", "mask"])
@pytest.mark.parametrize("of", AFFINE)
def test_resets_and_masks(of, rule):
    """Terms are chosen by the flag of each step; a state that is dropped reaches nothing."""
    assert_merges(compiler.graph_of(of, (RULES[rule],)), 3, flags=True)


def test_a_dropped_state_may_be_nan():
    """It is 0 behind a reset, not 0 times what it was."""
    graph = compiler.graph_of(delta, (RULES["reset"],))
    several = merge_steps(graph, 2)
    assert several is not None
    source, arrays = torch.Generator().manual_seed(0), Arrays(torch.float64, torch.device("cpu"))
    values = {leaf: drawn(leaf, source, BATCH) for leaf in several.leaves}
    values |= {leaf: torch.ones(BATCH) for leaf in several.inputs if "reset" in leaf.name}
    values |= {leaf: values[leaf] * torch.nan for leaf in several.states}
    last, first, second = evaluate(arrays, several.roots, values, DIMS)
    assert first.isnan().all()
    assert second.isfinite().all()
    assert last.isfinite().all()


def random_step(seed: int):
    """A cell whose matrices are affine in their states, with random terms."""
    draw = random.Random(seed)

    def update(q, k, v, w, a, b, S, M):
        vectors = {"K": [q, k, sigmoid(q * k)], "V": [v, w, tanh(v + w)]}
        numbers = [a, b, sigmoid(a * b), 0.5, total(q * k)]

        def number():
            return draw.choice(numbers)

        def vector(dim):
            return number() * draw.choice(vectors[dim])

        def matrix(state):
            form = draw.randrange(5)
            scaled = [
                lambda: number() * state,
                lambda: rows(vector("K")) * state,
                lambda: state * columns(vector("V")),
                lambda: state / (2 + number() * number()),
                lambda: rows(vector("K")) * state * columns(vector("V")),
            ][form]()
            for _ in range(draw.randrange(3)):
                scaled = scaled + outer(vector("K"), vector("V")) * number()
            return scaled

        for _ in range(draw.randrange(1, 3)):
            read = draw.choice([S, M])
            vectors["V"].append(read.T @ vector("K") - vector("V"))
            vectors["K"].append(tanh(read @ vector("V")))
            numbers.append(sigmoid(total(read * columns(vector("V")))))
            S, M = matrix(S) + draw.choice([0.5, a]) * M, matrix(draw.choice([S, M]))
        return vectors["V"][-1], vectors["K"][-1], S, M

    declared = cell(
        input="q[K], k[K], v[V], w[V], a, b", state="S[K, V], M[K, V]", output="y[V], z[K]"
    )
    return declared(update)


@pytest.mark.parametrize("block", every(3, range(8)))
def test_random_steps(block, monkeypatch):
    """200 random affine steps, merged, however many terms they have."""
    monkeypatch.setattr(merge, "_MOST_TERMS", 1000)
    for seed in range(25 * block, 25 * block + 25):
        assert_merges(compiler.graph_of(random_step(seed)), 2 + seed % 2)


def test_too_many_terms_are_not_merged(monkeypatch):
    """What would cost more than it saves."""
    graph = compiler.graph_of(delta)
    assert merge.merge_steps(graph, 4) is not None
    monkeypatch.setattr(merge, "_MOST_TERMS", 0)
    assert merge.merge_steps(graph, 4) is None


@pytest.mark.parametrize("name", NOT_AFFINE)
def test_what_is_not_affine_stays(name):
    """A step that does something else with a matrix, and one without any."""

    def update(k, v, S):
        return NOT_AFFINE[name](k, v, S)

    of = cell(input="k[K], v[V]", state="S[K, V]", output="y[V]")(update)
    assert merge_steps(compiler.graph_of(of), 2) is None


def test_a_step_without_matrices_stays():
    """Vectors alone gain nothing."""

    def update(v, h):
        return 0.5 * h + v

    of = cell(input="v[V]", state="h[V]")(update)
    assert merge_steps(compiler.graph_of(of), 2) is None


def test_each_matrix_is_read_once():
    """All products of the merged steps are with the first matrix, whatever their number."""
    graph = merge_steps(compiler.graph_of(delta), 4)
    assert graph is not None
    products = [v for v in walk(graph.roots) if v.op in ACCUMULATED and is_matrix(v.args[0])]
    assert len(products) == 8  # a key and a query of each step
    (state,) = graph.states
    for value in products:
        assert state in value.args[0].args


def test_golden(golden):
    """Two steps of the gated delta rule."""
    graph = merge_steps(compiler.graph_of(delta), 2)
    assert graph is not None
    golden("pass_merge", show_graph(graph))
