"""Matrices per sample whose rows or columns have several parts, on engine c, beside loops in plain
torch: linear attention whose features are joined vectors."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

import elman
from elman import cell
from elman.compiler import graph_of
from elman.engines.c.engine import PRICES
from elman.lowered.lower import lower
from elman.ops import amax, concat, outer, sigmoid, sin
from elman.ops import sum as total
from elman.passes.merge import merge_steps
from elman.plan.build import program
from helpers import assert_same, job_of, need_engine, random_case
from library_sizes import matrix_sizes
from lowered_verify import verify
from matrix_parts import PARTS_SIZES, hedgehog, numbered, random_features, stacked, wide

F64 = torch.float64
K, P, V, I, B = 3, 2, 5, 4, 2


def step_hedgehog(inputs, states, weights):
    (q, k, v), (S, z) = inputs, states
    f, p = (torch.cat([a.softmax(1), (-a).softmax(1)], 1) for a in (q, k))
    S, z = S + p[:, :, None] * v[:, None], z + p
    return (torch.einsum("bkv,bk->bv", S, f) / (f * z).sum(1)[:, None],), (S, z)


def step_random_features(inputs, states, weights):
    (x, g), (S, z), (Q, R, W) = inputs, states, weights
    g, p = g.sigmoid()[:, None], torch.cat([(x @ R.T).sin(), (x @ R.T).cos()], 1)
    S = g[:, :, None] * S + (1 - g[:, :, None]) * p[:, :, None] * (x @ W.T)[:, None]
    z = g * z + (1 - g) * p
    f = torch.cat([(x @ Q.T).sin(), (x @ Q.T).cos()], 1)
    return (torch.einsum("bkv,bk->bv", S, f) / (1 + (f * z).sum(1).abs())[:, None],), (S, z)


def step_wide(inputs, states, weights):
    (q, p, v), (S, n), (W, M, N, c) = inputs, states, weights
    f = torch.cat([q.tanh(), (-q).exp(), p], 1)
    read = 0.2 * torch.einsum("bvk,bv->bk", S, v)
    a, d, b = read.split([K, K, P], 1)
    S = (
        0.7 * S
        + v[:, :, None] * (f - 0.1 * read)[:, None] * (1 + 0.1 * W)
        - (0.1 * (n * c)[:, None] * S.tanh())
    )
    inner = torch.einsum("bvk,bk->bv", S, read + c)
    S = S + 0.1 * inner[:, :, None] * read[:, None] + 0.05 * S @ N @ N.T
    n = 0.5 * n + (S.amax(1) + S.var(1, correction=0)).tanh() + v @ M.T
    m = torch.einsum("bvk,bv->bk", S.softmax(1) + S.softmax(2), v) + W.sum(0)
    y = torch.einsum("bvk,bk->bv", S, n + f)
    return (torch.cat([d * a, q, b], 1) + m * f, y), (S, n)


def step_stacked(inputs, states, weights):
    (q, p, v, A), (S, U), (W,) = inputs, states, weights
    f, many = torch.cat([q, -q, p], 1), W.expand(len(q), -1, -1)
    rows = torch.cat([S, U], 1) * 0.5 + f[:, :, None] * v[:, None]
    rows = rows + torch.cat([A, many.tanh(), U], 1)
    first, second, lower = rows.split([K, K, P], 1)
    shifted = torch.cat([rows.mT[:, 1:], torch.cat([q, q, p], 1)[:, None]], 1)
    S = torch.cat([second.tanh(), 0.5 * first * A], 1)
    return (torch.einsum("bkv,bv->bk", rows, v), shifted), (S, lower.sigmoid())


def step_numbered(inputs, states, weights):
    (q, v), (S,) = inputs, states
    S = 0.5 * S + torch.cat([q[:, 4:].tanh(), q[:, :4]], 1)[:, :, None] * v[:, None]
    read = torch.einsum("bkv,bv->bk", S, v)
    return (torch.cat([read[:, :4] * read[:, 4:], S[:, 4:].sum(2)], 1) * q,), (S,)


CASES = {
    "hedgehog": (hedgehog, step_hedgehog),
    "random_features": (random_features, step_random_features),
    "wide": (wide, step_wide),
    "stacked": (stacked, step_stacked),
    "numbered": (numbered, step_numbered),
}
SIZES = {"K": K, "P": P, "V": V, "I": I, "2K": 2 * K, "2K+P": 2 * K + P}


def module_of(chosen, heads=1, **options):
    """A module of a cell, and the sizes of its inputs and states (of one head)."""

    def size(entry):
        axes = entry.shape[0] if entry.shape else ()
        if axes and isinstance(axes[0], tuple):
            axes = axes[0]
        elif axes:
            return (sum(SIZES.get(part, part) for part in axes),)
        return tuple(SIZES.get(axis, axis) for axis in axes)

    inputs, states = ([size(entry) for entry in group] for group in (chosen.inputs, chosen.states))
    given = {name: heads * value for name, value in PARTS_SIZES[chosen.name].items()}
    more = {"heads": heads} if heads > 1 else {}
    return elman.Recurrent(chosen, dtype=F64, **given, **more, **options), (inputs, states)


def drawn(sizes, *lead, seed):
    """Random arguments."""
    source = torch.Generator().manual_seed(seed)
    values = [torch.randn(*lead, *size, generator=source, dtype=F64) for size in sizes]
    return [(value / 2).requires_grad_() for value in values]


def loop(step, x, states, weights):
    """Outputs and last states of a step of torch's, time step by time step."""
    results = []
    for row in zip(*x, strict=True):
        outputs, states = step(row, states, weights)
        results.append(outputs)
    return [*(torch.stack(values) for values in zip(*results, strict=True)), *states]


def compare(got, want, gradients, T):
    """Assert that tensors agree, of which the last ones are gradients."""
    for at, (a, b) in enumerate(zip(got, want, strict=True)):
        name = f"d{at}" if at >= len(want) - gradients else f"tensor {at}"
        assert_same(name, a.detach(), b.detach(), F64, T)


def weighted(values):
    """A scalar that depends on every element in its own way."""
    return sum((v * torch.linspace(-1, 1, v.numel(), dtype=F64).view_as(v)).sum() for v in values)


@pytest.mark.parametrize("T", [1, 9, pytest.param(70, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, T):
    """Outputs, last states and every gradient are those of a loop in torch."""
    need_engine("c")
    chosen, step = CASES[name]
    net, (inputs, states) = module_of(chosen, engine="c")
    x, s = drawn(inputs, T, B, seed=1), drawn(states, B, seed=2)
    leaves = [*x, *s, *net.parameters()]
    want = loop(step, x, s, [*net.parameters()])
    want += torch.autograd.grad(weighted(want), leaves)
    out, last = net(tuple(x), tuple(v[None] for v in s) if len(s) > 1 else s[0][None])
    got = [*tree_leaves(out), *(value[0] for value in tree_leaves(last))]
    got += torch.autograd.grad(weighted(got), leaves)
    compare(got, want, len(leaves), T)


@pytest.mark.parametrize("name", CASES)
def test_lengths_resets_and_learned_states(name):
    """Options agree with engine reference, which runs the formula as written."""
    need_engine("c")
    T, results = 9, {}
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[4, 0] = True
    for engine in ("reference", "c"):
        torch.manual_seed(0)
        net, (inputs, _) = module_of(CASES[name][0], engine=engine, learn_initial=True)
        x, values = drawn(inputs, T, B, seed=4), []
        with torch.no_grad():  # zeros, else
            for parameter in net.parameters():
                parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).view_as(parameter))
        for options in ({"lengths": torch.tensor([T, 5])}, {"reset": reset}):
            values += tree_leaves(net(tuple(x), **options))
        values += torch.autograd.grad(weighted(values), [*x, *net.parameters()])
        results[engine] = [value.detach() for value in values]
    compare(results["c"], results["reference"], len(x) + len([*net.parameters()]), T)


@pytest.mark.parametrize("name", ["hedgehog", "numbered"])
def test_heads_and_streams(name):
    """Two heads are two samples; a stream in parts is the whole."""
    need_engine("c")
    chosen = CASES[name][0]
    net, (inputs, _) = module_of(chosen, heads=2, engine="c")
    single, _ = module_of(chosen, engine="c")
    x = drawn(inputs, 6, B, 2, seed=5)
    out, last = net(tuple(x))
    want, ends = single(tuple(v.flatten(1, 2) for v in x))
    assert_same("heads", out.detach().flatten(), want.detach().flatten(), F64, 6)
    for a, b in zip(tree_leaves(last), tree_leaves(ends), strict=True):
        assert_same("states", a.detach().flatten(), b.detach().flatten(), F64, 6)
    stream = elman.Stream(single.eval())
    parts = [stream(tuple(v.detach().flatten(1, 2)[at : at + 3] for v in x)) for at in (0, 3)]
    assert_same("stream", torch.cat(parts).flatten(), want.detach().flatten(), F64, 6)


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives(name):
    """As of a loop in torch."""
    need_engine("c")
    chosen, step = CASES[name]
    net, (inputs, states) = module_of(chosen, engine="c")
    x, s = drawn(inputs, 3, B, seed=6), drawn(states, B, seed=7)
    twice = []
    for values in (
        loop(step, x, s, [*net.parameters()]),
        tree_leaves(net(tuple(x), tuple(v[None] for v in s) if len(s) > 1 else s[0][None])),
    ):
        first = torch.autograd.grad(
            weighted(v.flatten() ** 2 for v in values), x, create_graph=True
        )
        twice.append(torch.autograd.grad(weighted(g**2 for g in first), x))
    compare(*reversed(twice), len(x), 3)


@pytest.mark.parametrize("chosen", [hedgehog, random_features, stacked], ids=lambda one: one.name)
def test_lowered_programs_are_verified(chosen):
    """Accesses lie in their memory, and what is loaded is stored before."""
    job = job_of(random_case(chosen, matrix_sizes(chosen, 4, 5), 0, F64))
    for planned in filter(None, (job, job.several)):
        verify(lower(program(planned.pair, planned.spec, PRICES), 8))


def test_a_normaliser_of_products_beside_a_matrix():
    """The gradient of a gate is one sum over a vector that later products make and over a matrix,
    which no phase behind the loop can read."""
    need_engine("c")

    @cell(
        input="x[I], g", state="S[K, V], z[K]", output="y[V]", weights="Q[K, I], R[K, I], W[V, I]"
    )
    def gated(x, g, S, z, Q, R, W):
        g, p, f = sigmoid(g), sin(R @ x), sin(Q @ x)
        S = g * S + (1 - g) * outer(p, W @ x)
        z = g * z + (1 - g) * p
        return S.T @ f / (2 + total(f * z)), S, z

    x, g = drawn([(I,), ()], 5, B, seed=8)
    results = {}
    for engine in ("reference", "c"):
        torch.manual_seed(0)
        net = elman.Recurrent(gated, I, V, K=K, dtype=F64, engine=engine)
        out, _ = net((x, g))
        results[engine] = torch.autograd.grad(weighted([out]), [x, g, *net.parameters()])
    compare(results["c"], results["reference"], 99, 5)


@pytest.mark.parametrize("chosen", [hedgehog, random_features], ids=lambda each: each.name)
def test_merged_steps(chosen):
    """Features are no obstacle: four steps of the matrix are one."""
    assert merge_steps(graph_of(chosen), 4) is not None


def test_joined_parts_are_exact():
    """-0 stays -0, infinity and NaN stay where they are: nothing is added to a unit."""
    need_engine("c")

    @cell(input="k[K]", state="S[2K, 2]", output="y[2K]", constants="e[2]", init={"e": 1.0})
    def kept(k, S, e):
        S = outer(concat(k, -k), e)
        return amax(S, axis=1), S

    k = torch.tensor([-0.0, float("inf"), float("nan"), 0.0, -1.5], dtype=F64)
    for engine in ("reference", "c"):
        net = elman.Recurrent(kept, 5, 2, dtype=F64, engine=engine)
        out, _ = net(k[None, None])
        want = torch.cat([k, -k])
        assert torch.equal(out[0, 0].nan_to_num(7), want.nan_to_num(7))
        assert torch.equal(out[0, 0].signbit() & (want == 0), want.signbit() & (want == 0))


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("kind", ["tensor", "scheme", "function"])
def test_matrices_to_begin_with(kind, learned):
    """``init=`` has a matrix for a state that is one, as it is declared."""
    begin = torch.arange(12.0, dtype=F64).view(4, 3)
    inits = {"tensor": begin, "scheme": "eye", "function": lambda S: torch.eye(*S.shape)}

    @cell(input="x[V]", state="S[2K, V]", output="y[2K]", init={"S": inits[kind]})
    def beginning(x, S):
        return S @ x, S

    net = elman.Recurrent(beginning, 3, 3, K=2, dtype=F64, learn_initial=learned)
    x = torch.randn(1, 2, 3, dtype=F64)
    want = begin if kind == "tensor" else torch.eye(4, 3, dtype=F64)
    out, last = net(x)
    assert_same("out", out[0], x[0] @ want.T, F64, 1)
    assert torch.equal(last[0].detach(), want.expand(2, 4, 3))
