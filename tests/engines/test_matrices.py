"""States that are matrices per sample, on engine c, beside loops in plain torch; those of the
library are in ``cells/test_matrix_cells.py``."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._pytree import tree_leaves

import elman
from calls import backward, call, forward, given_of
from elman import cell, cells
from elman.compiler import graph_of
from elman.engines.c.engine import ENGINE, PRICES
from elman.errors import EngineError, InputError, ShapeError, TraceError
from elman.lowered.lower import lower
from elman.ops import (
    amax,
    columns,
    concat,
    exp,
    mean,
    outer,
    rows,
    shift,
    sigmoid,
    softmax,
    split,
    tanh,
    var,
)
from elman.ops import sum as total
from elman.passes.merge import merge_steps
from elman.plan.build import program
from elman.plan.prices import Prices
from elman.plan.schedule import Division
from elman.tuning.kernels import kernel_of
from helpers import (
    Sizes,
    assert_all_same,
    assert_same,
    job_of,
    need,
    need_engine,
    oracle,
    random_case,
    run,
)
from kernels import c_kernel, unit
from library_sizes import matrix_sizes
from lowered_machine import lowered_of
from lowered_verify import verify
from products import every

F32, F64 = torch.float32, torch.float64
STEPS = 70  # of more than one chunk, which has 64 steps at most


@cell(input="q[K], k[K], v[V], a, b", state="S[K, V]", output="y[V]")
def delta(q, k, v, a, b, S):
    """The gated delta rule."""
    S = sigmoid(a) * S
    S = S + outer(k, sigmoid(b) * (v - S.T @ k))
    return S.T @ q, S


@cell(
    input="q[K], k[K], v[V], g[K]",
    state="S[K, V], n[K], m",
    output="y[V], z[K]",
    weights="W[V, V], c[K]",
)
def stabilised(q, k, v, g, S, n, m, W, c):
    """Vectors and a scalar beside the matrix, a product with weights, reductions of each kind."""
    new = total(tanh(S * S)) / 7 + 0.5 * m
    decay = rows(sigmoid(g + c))
    v = tanh(W @ v + total(S, axis=0))
    S = decay * S + outer(k, v) - 0.1 * columns(v) * S
    n = sigmoid(g) * n + exp(-new) * k + 0.1 * amax(S, axis=1)
    return S.T @ q / (1 + total(q * n) ** 2), total(S, axis=1), S, n, new


@cell(input="A[K, V], x[V]", state="S[K, V]", output="Y[K, V]")
def whole(A, x, S):
    """A matrix as the input and as the output of each step."""
    S = 0.5 * S + tanh(A * columns(x))
    return S * S, S


def step_stabilised(inputs, states, weights):
    """As :func:`stabilised`, in torch."""
    (q, k, v, g), (S, n, m), (W, c) = inputs, states, weights
    new = torch.tanh(S * S).sum((1, 2)) / 7 + 0.5 * m
    v = torch.tanh(v @ W.T + S.sum(1))
    S = torch.sigmoid(g + c)[:, :, None] * S + k[:, :, None] * v[:, None] - 0.1 * v[:, None] * S
    n = torch.sigmoid(g) * n + torch.exp(-new)[:, None] * k + 0.1 * S.amax(2)
    y = torch.einsum("bkv,bk->bv", S, q) / (1 + (q * n).sum(1) ** 2)[:, None]
    return (y, S.sum(2)), (S, n, new)


def step_whole(inputs, states, weights):
    """As :func:`whole`, in torch."""
    A, x = inputs
    S = 0.5 * states[0] + torch.tanh(A * x[:, None])
    return (S * S,), (S,)


@cell(input="x[I]", state="S[K, V]", output="y[V]", weights="P[K, I], Q[K, I], W[V, I]")
def projected(x, S, P, Q, W):
    """Products with weights before and behind the matrix."""
    S = S + outer(softmax(P @ x), W @ x)
    return S.T @ softmax(Q @ x), S


def step_projected(inputs, states, weights):
    """As :func:`projected`, in torch."""
    (x,), (S,), (P, Q, W) = inputs, states, weights
    S = S + (x @ P.T).softmax(-1)[:, :, None] * (x @ W.T)[:, None]
    return (torch.einsum("bkv,bk->bv", S, (x @ Q.T).softmax(-1)),), (S,)


@cell(
    input="x[I]",
    static="G[K, V]",
    state="S[K, V], h[V]",
    output="y[K]",
    weights="A[K, V], M[K, V], W[V, I], c[V]",
)
def synaptic(x, G, S, h, A, M, W, c):
    """Matrices of weights, and static ones, at each element of a matrix per sample."""
    S = 0.9 * S + 0.1 * sigmoid(columns(h) - M) * A * softmax(G, axis=1)
    h = tanh(W @ x + c + var(S, axis=0) + mean(A * S, axis=0))
    return (A * S) @ h + softmax(A, axis=1) @ h, S, h


def step_synaptic(inputs, states, weights):
    """As :func:`synaptic`, in torch."""
    (x, G), (S, h), (A, M, W, c) = inputs, states, weights
    S = 0.9 * S + 0.1 * torch.sigmoid(h[:, None] - M) * A * G.softmax(2)
    h = torch.tanh(x @ W.T + c + S.var(1, correction=0) + (A * S).mean(1))
    return (torch.einsum("bkv,bv->bk", A * S, h) + h @ A.softmax(1).T,), (S, h)


@cell(
    input="q[K], k[K], v[V], f",
    state="S[K, V], U[V, K]",
    output="y[V]",
    weights="W[V, K], M[K, K]",
)
def multiplied(q, k, v, f, S, U, W, M):
    """Products of matrices: with weights on both sides, of two states, of transposes."""
    f = sigmoid(f)
    made = 0.3 * tanh(M @ S + W.T @ outer(v, v) + S @ W @ S + M.T @ U.T + outer(k, v))
    U = 0.5 * U + 0.1 * tanh(S.T @ (0.3 * S) @ U + v.shape[0] * W + S.T @ U.T @ (M.T @ U.T).T)
    S = f * S + (1 - f) * made + 0.1 * (tanh(S @ U) + M) @ S
    return S.T @ q, S, U


def step_multiplied(inputs, states, weights):
    """As :func:`multiplied`, in torch."""
    (q, k, v, f), (S, U), (W, M) = inputs, states, weights
    f = torch.sigmoid(f)[:, None, None]
    kv, vv = k[:, :, None] * v[:, None], v[:, :, None] * v[:, None]
    made = 0.3 * torch.tanh(M @ S + W.T @ vv + S @ W @ S + M.T @ U.mT + kv)
    inner = S.mT @ (0.3 * S) @ U + v.shape[1] * W + S.mT @ U.mT @ U @ M
    U = 0.5 * U + 0.1 * torch.tanh(inner)
    S = f * S + (1 - f) * made + 0.1 * (torch.tanh(S @ U) + M) @ S
    return (torch.einsum("bkv,bk->bv", S, q),), (S, U)


@cell(input="x[I]", state="S[K, V]", output="y[V], z[K]", weights="W[V, V], P[V, I]")
def window(x, S, W, P):
    """Attention over the last values of a projection; the largest, and softmax, along both axes."""
    x = P @ x
    S = shift(S, x)
    shares = softmax(S @ (W @ x))
    y = S.T @ shares + amax(S, axis=0) + softmax(S, axis=0).T @ amax(S.T * 2, axis=0)
    return y, softmax(S.T, axis=1).T @ x, S


def step_window(inputs, states, weights):
    """As :func:`window`, in torch."""
    (x,), (S,), (W, P) = inputs, states, weights
    x = x @ P.T
    S = torch.cat([S[:, 1:], x[:, None]], 1)
    shares = torch.einsum("bkv,bv->bk", S, x @ W.T).softmax(-1)
    y = torch.einsum("bkv,bk->bv", S, shares) + S.amax(1)
    y = y + torch.einsum("bkv,bk->bv", S.softmax(1), 2 * S.amax(2))
    return (y, torch.einsum("bkv,bv->bk", S.softmax(1), x)), (S,)


@cell(input="x[V]", state="S[K, V]", output="y[V], Y[K, V]", weights="W[K, V], k[K]")
def along_weights(x, S, W, k):
    """The largest and the variance along both axes of weights, a softmax of them; an output that is
    a weight."""
    x = x * amax(W, axis=0) + var(W, axis=-2)
    k = tanh(k * amax(W, axis=1) + var(W, axis=-1))
    S = 0.5 * S + outer(k, x) * softmax(W, axis=1)
    return S.T @ k, W, S


def step_along_weights(inputs, states, weights):
    """As :func:`along_weights`, in torch."""
    (x,), (S,), (W, k) = inputs, states, weights
    x = x * W.amax(0) + W.var(0, correction=0)
    k = torch.tanh(k * W.amax(1) + W.var(1, correction=0))
    S = 0.5 * S + k[:, None] * x[:, None] * W.softmax(1)
    return (torch.einsum("bkv,k->bv", S, k), W.expand(len(x), *W.shape)), (S,)


CASES = {
    "along weights": (along_weights, step_along_weights),
    "multiplied": (multiplied, step_multiplied),
    "window": (window, step_window),
    "projected": (projected, step_projected),
    "stabilised": (stabilised, step_stabilised),
    "whole": (whole, step_whole),
    "synaptic": (synaptic, step_synaptic),
}
# one of the first three for each cell, in turn; the last for all; T is no number of a kernel's
SIZES = [(1, 1, 1, 3), (16, 16, 5, 2), (3, 160, 4, 1), (5, 7, 6, 3), (8, 21, STEPS, 3)]


def module_of(chosen, K, V, dtype, **options):
    """A module of a cell, and the sizes of its inputs and states."""
    axes = {"K": K, "V": V, "I": 4}

    def size(entry):
        if not entry.shape:
            return ()
        block = entry.shape[0][0]
        return tuple(axes[name] for name in (block if isinstance(block, tuple) else (block,)))

    inputs, states = ([size(entry) for entry in group] for group in (chosen.inputs, chosen.states))
    sizes = {"K": K} if chosen in (whole, projected, synaptic, window, along_weights) else {}
    net = elman.Recurrent(chosen, inputs[0][-1], V, dtype=dtype, **sizes, **options)
    return net, inputs, states


def drawn(sizes, *lead, seed):
    """Random arguments."""
    source = torch.Generator().manual_seed(seed)
    values = [torch.randn(*lead, *size, generator=source, dtype=F64) for size in sizes]
    return [value / max(1, value.shape[-1]) ** 0.5 for value in values]


@pytest.mark.parametrize(
    ("name", "K", "V", "T", "B", "dtype"),
    [
        pytest.param(name, *sizes, marks=() if at > 3 or at == number % 3 else pytest.mark.long)
        for number, name in enumerate(CASES)
        for at, sizes in enumerate(
            [*((*sizes, F64) for sizes in SIZES), (5, 7, 6, 3, torch.float32)],
        )
    ],
)
def test_values_and_gradients(name, K, V, T, B, dtype):
    """Outputs, last states and every gradient are those of a loop in torch."""
    need_engine("c")
    chosen, step = CASES[name]
    net, inputs, states = module_of(chosen, K, V, dtype, engine="c")
    static = drawn([(K, V)] if chosen.static else [], B, seed=4)
    x, s = drawn(inputs, T, B, seed=1), drawn(states, B, seed=2)
    given = [v.requires_grad_() for v in (*x, *static, *s)]
    w = [weight.detach().to(F64).requires_grad_() for weight in net.parameters()]
    want, now = [], tuple(s)
    for row in zip(*x, strict=True):
        outputs, now = step((*row, *static), now, w)
        want.append(outputs)
    want = [*(torch.stack(values) for values in zip(*want, strict=True)), *now]
    cotangents = drawn([tuple(v.shape) for v in want], seed=3)
    want += torch.autograd.grad(want, [*given, *w], cotangents)

    leaves = [v.detach().to(dtype).requires_grad_() for v in given]
    x, static, s = (
        leaves[: len(x)],
        leaves[len(x) : -len(s)],
        [v[None] for v in leaves[-len(s) :]],
    )
    more = {"static": static[0]} if static else {}
    out, last = net(tuple(x), tuple(s) if len(s) > 1 else s[0], **more)
    got = [*tree_leaves(out), *(value[0] for value in tree_leaves(last))]
    cotangents = [c.to(dtype) for c in cotangents]
    got += torch.autograd.grad(got, [*leaves, *net.parameters()], cotangents)
    for k, pair in enumerate(zip(got, want, strict=True)):
        assert_same(f"tensor {k}", *(value.detach() for value in pair), dtype, T)


@pytest.mark.parametrize(
    "chosen, T",
    [
        (delta, STEPS),
        (stabilised, 9),
        *(
            pytest.param(each, STEPS, marks=pytest.mark.long)
            for each in (stabilised, multiplied, window)
        ),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_unequal_lengths_resets_and_masks(chosen, T):
    """Packed rows, ``lengths=``, ``reset=`` and ``mask=`` agree with engine reference, in one chunk
    of steps and across two."""
    need_engine("c")
    K, V, B = 4, 6, 3
    lengths = torch.tensor([T, T - 4, 2])
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[5, 0] = reset[T - 5, 1] = True
    mask = torch.ones(T, B, dtype=torch.bool)
    mask[3:9, 1] = False
    results = {}
    for engine in ("reference", "c"):
        torch.manual_seed(0)
        net, inputs, _ = module_of(chosen, K, V, F64, engine=engine)
        x = [value.requires_grad_() for value in drawn(inputs, T, B, seed=4)]
        packed = tuple(pack_padded_sequence(value, lengths) for value in x)
        values = []
        for args, options in (
            (packed, {}),
            (tuple(x), {"lengths": lengths}),
            (tuple(x), {"reset": reset}),
            (tuple(x), {"mask": mask}),
        ):
            out, last = net(args, **options)
            outs = [out] if isinstance(out, (torch.Tensor, PackedSequence)) else [*out]
            tensors = [p.data if isinstance(p, PackedSequence) else p for p in outs]
            tensors += tree_leaves(last)
            values += tensors + list(torch.autograd.grad(sum(t.square().sum() for t in tensors), x))
        results[engine] = values
    for value, other in zip(results["c"], results["reference"], strict=True):
        torch.testing.assert_close(value, other, rtol=1e-8, atol=1e-8)


def test_steps_streams_directions_and_layers():
    """A stream gives what one call gives; both directions and layers are those of the reference."""
    need_engine("c")
    net, inputs, _ = module_of(delta, 5, 7, F64, engine="c")
    x = tuple(drawn(inputs, 9, 2, seed=5))
    out, last = net(x)
    assert last.shape == (1, 2, 5, 7)
    stream = elman.Stream(net)
    parts = [stream(tuple(v[a:b] for v in x)) for a, b in ((0, 1), (1, 6), (6, 9))]
    torch.testing.assert_close(torch.cat(parts), out)
    state = None
    for t in range(9):
        row, state = net.step(tuple(v[t] for v in x), state)
    torch.testing.assert_close(row, out[-1])
    torch.testing.assert_close(state, last)
    both = elman.Recurrent(delta, 5, 7, bidirectional=True, dtype=F64)
    assert both(x)[0].shape == (9, 2, 14)
    assert both(x)[1].shape == (2, 2, 5, 7)


@pytest.mark.parametrize("wanted", [True, False], ids=["weights", "nothing"])
def test_some_gradients_are_not_wanted(wanted):
    """Without those of inputs, or without any."""
    need_engine("c")
    results = []
    for engine in ("reference", "c"):
        torch.manual_seed(0)
        net, inputs, _ = module_of(projected, 3, 5, F64, engine=engine)
        net.requires_grad_(wanted)
        out, last = net(*drawn(inputs, 7, 2, seed=8))
        values = [out.detach(), last.detach()]
        if wanted:
            (out.square().sum() + last.square().sum()).backward()
            values += [weight.grad for weight in net.parameters()]
        results.append(values)
    for value, other in zip(*results, strict=True):
        torch.testing.assert_close(value, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("K", [1, 4])
def test_one_row_and_one_sample(K):
    """What looks like another shape where K or B is 1 is not taken for it."""
    net, inputs, _ = module_of(delta, K, 5, F64)
    x = tuple(drawn(inputs, 3, 1, seed=9))
    out, last = net(x)
    state = None
    for t in range(3):
        row, state = net.step(tuple(v[t] for v in x), state)
    torch.testing.assert_close(row, out[-1])
    torch.testing.assert_close(state, last)
    with pytest.raises(ShapeError, match=rf"S is a matrix \[{K}, 5\] of each sample, got"):
        net(x, last.mT.contiguous())


def test_matrices_as_inputs_and_outputs():
    """Packed, by steps, and as streams of which samples begin anew."""
    net, inputs, _ = module_of(whole, 3, 4, F64)
    x = tuple(drawn(inputs, 5, 2, seed=10))
    out, last = net(x)
    assert out.shape == (5, 2, 3, 4)
    packed, after = net(tuple(pack_padded_sequence(v, torch.tensor([5, 5])) for v in x))
    torch.testing.assert_close(packed.data.reshape(out.shape), out)
    torch.testing.assert_close(after, last)
    torch.testing.assert_close(net.step(tuple(v[0] for v in x))[0], out[0])
    stream = elman.Stream(net)
    stream(x)
    stream.reset([1])
    assert stream.state[0, 1].count_nonzero() == 0
    torch.testing.assert_close(stream.state[0, 0], last[0, 0])


@pytest.mark.parametrize("chosen", [delta, multiplied, window], ids=lambda c: c.name)
def test_second_derivatives(chosen):
    """Gradients, and gradients of these, are those of finite differences."""
    net, inputs, _ = module_of(chosen, 2, 3, F64)
    x = tuple(value.requires_grad_() for value in drawn(inputs, 2, 1, seed=6))

    def output(*row):
        out, _ = net(row)
        return out[0] if isinstance(out, tuple) else out

    assert torch.autograd.gradcheck(output, x)
    assert torch.autograd.gradgradcheck(output, x)


@pytest.mark.parametrize("chosen", [delta, stabilised, multiplied], ids=lambda c: c.name)
def test_every_schedule(chosen):
    """Two workers share samples, and chunks; one sample is one worker's. Again and again, since
    workers that race may be lucky."""
    for batch in (1, 3):
        case = random_case(chosen, Sizes(T=4, B=batch, I=3, H=160), 0, F64)
        want, kernel = oracle(case), c_kernel(case)
        for division in map(Division, ("one", "batch", "units", "one", "batch"), (0, 0, 0, 1, 4)):
            scheduled = kernel.scheduled(division, 2)
            for _ in range(5):
                assert_all_same(call(scheduled, case), want, F64, case.T)


def test_sums_of_rows_of_one_vector(as_users):
    """A matrix whose rows are one vector, by kernels as users have them: gcc 12 left out the call
    that changes its cotangent."""

    @cell(input="q[K]", state="S[K, V]", output="y[K]")
    def centred(q, S):
        return q, 0.5 * S + 0.5 * tanh(S - rows(total(S, axis=1)))

    case = random_case(centred, Sizes(T=2, B=1, I=8, H=8), 0, F64)
    need("c", job_of(case))
    assert_all_same(call(c_kernel(case), case), oracle(case), F64, case.T)


def test_rows_that_are_read_in_a_loop_over_groups_are_prefetched():
    """Gate blocks alike are one loop; the rows of each are named beyond it."""

    @cell(input="x[24K], v[V]", state="S[K, V], n[24K]", output="y[V]")
    def beside_a_vector(x, v, S, n):
        q, k, *_ = split(n, 24)
        return S.T @ q, 0.9 * S + outer(k, v), 0.5 * n + tanh(x)

    case = random_case(beside_a_vector, Sizes(T=3, B=3, I=24 * 8, H=5), 0, F64)
    need("c", job_of(case))
    assert_all_same(call(c_kernel(case), case), oracle(case), F64, case.T)


@pytest.mark.parametrize("row", [0.0, 2.0])
def test_a_row_is_picked_by_a_constant(row):
    """A vector of constants that reads a number in full is computed once per call, from memory."""

    @cell(input="x[V]", state="S[3, V], h[V]", output="y[V]", weights="W[V, V], c[V]")
    def picked(x, S, h, W, c):
        column = total(S, axis=1)
        of_row = S.T @ unit(column, row)
        S = 0.5 * S + outer(unit(column, 1.0), tanh(W @ h + x))
        return of_row, S, tanh(W @ of_row + c)

    case = random_case(picked, Sizes(T=5, B=3, I=5, H=5), 0, F64)
    need("c", job_of(case))
    got = call(c_kernel(case), case)
    first = case.states["S"].unflatten(-1, (3, 5))[:, int(row)]
    assert_same("the row", got["out"][0], first, F64, 1)
    assert_all_same(got, oracle(case), F64, case.T)


def test_sums_are_stored_where_nothing_is_read_any_more():
    """A sum over a matrix is complete before the loop over its vector begins, which may read what
    lay in its place before."""

    @cell(input="q[K], x[V]", state="S[K, V], h[V]", output="y[K]", weights="w[V]")
    def shared(q, x, S, h, w):
        S = 0.5 * S + 0.5 * tanh(tanh(S) + columns(w))
        return q, S, 0.5 * h + 0.5 * tanh(softmax(h))

    case = random_case(shared, Sizes(T=3, B=2, I=3, H=5), 0, F64)
    need("c", job_of(case))
    kernel = c_kernel(case, prices=Prices(0.04, 0.001, 0.4, 0.001, 0.001))
    assert_all_same(call(kernel, case), oracle(case), F64, case.T)


@cell(input="x[I]", state="S[K, V], h[V]", output="y[V]", weights="P[K, I], R[V, V], c[K]")
def recalling(x, S, h, P, R, c):
    """A recurrent layer that reads and writes a memory: a product with weights in each step."""
    k = tanh(P @ x)
    h = tanh(R @ h + S.T @ k)
    return h, rows(sigmoid(c)) * S + outer(k, h), h


MERGED = [cell for cell in cells.MATRIX if merge_steps(graph_of(cell), 4) is not None]


def check_kernel(kernel, case, want):
    """Results, under stress too; a backward whose tape is kept, and another; discarded tapes."""
    assert_all_same(call(kernel, case), want, F64, case.T)
    given = given_of(case)
    result = forward(kernel, given)
    d = (case.d_output, case.d_last.values())
    first = backward(kernel, given, result.saved, *d, keep=True)
    again = backward(kernel, given, result.saved, *d)
    for one, other in zip(first, again, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)
    kernel.discard(forward(kernel, given).saved)
    for stressed in kernel.stressed():
        assert_all_same(call(stressed, case), want, F64, case.T)


@pytest.mark.parametrize("chosen", [delta, projected, recalling, *every(2, MERGED)])
def test_merged_steps(chosen):
    """Groups of four steps and what is left behind them: forward, a backward whose tape is kept,
    and another; fewer steps than a group has."""
    for T in (3, 4, 11):
        case = random_case(chosen, matrix_sizes(chosen, T, 7), T, F64)
        case.inputs.update({name: 0.5 * x for name, x in case.inputs.items()})  # no growth
        need("c", job_of(case))
        want = oracle(case)
        for division in ("one", "batch"):
            kernel = kernel_of(job_of(case), "c", f"4-steps/{division}")
            assert kernel.describe()["schedule"] == f"4-steps/{division}"
            check_kernel(kernel, case, want)


@pytest.mark.slow
@pytest.mark.parametrize("special", [float("inf"), float("nan")])
@pytest.mark.parametrize("chosen", every(5, MERGED))
def test_merged_steps_are_finite_where_single_ones_are(chosen, special):
    """One infinity or NaN in one input: the same elements of every result are finite, whatever
    terms of both signs a product is merged of."""
    case = random_case(chosen, matrix_sizes(chosen, 11, 7), 1, F64)
    need("c", job_of(case))
    merged = kernel_of(job_of(case), "c", "4-steps/one")
    for x in case.inputs.values():
        before = x.detach().clone()
        with torch.no_grad():
            x[5, 0].view(-1)[-1] = special
        want = run(chosen, case, "reference")
        for name, value in call(merged, case).items():
            assert torch.equal(value.isfinite(), want[name].isfinite()), name
        with torch.no_grad():
            x.copy_(before)


def test_merged_steps_are_offered_and_refused():
    """Where there are matrices, affine in their states, and steps enough."""
    case = random_case(delta, Sizes(T=8, B=3, I=5, H=7), 0, F64)
    need("c", job_of(case))
    engine = ENGINE
    names = engine.schedules(job_of(case), 8, 3)
    assert names[0].startswith("4-steps/")
    assert not any("steps" in name for name in engine.schedules(job_of(case), 3, 3))
    other = job_of(random_case(stabilised, Sizes(T=8, B=3, I=5, H=7), 0, F64))
    assert not any("steps" in name for name in engine.schedules(other, 8, 3))
    with pytest.raises(EngineError, match="steps of stabilised cannot be merged"):
        engine.compile(other, "4-steps/batch")


@cell(input="x[V]", state="S[V, V]", output="y[V]", weights="W[V, V]")
def bypassed(x, S, W):
    """A product with weights beside what is read of the matrix."""
    S = 0.5 * S + outer(x, x)
    return S.T @ x + W @ x, S


def test_steps_whose_sums_read_the_cotangent_of_the_output_are_not_merged():
    """The gradient of W is the sum over all steps of what lies step by step."""
    case = random_case(bypassed, Sizes(T=9, B=3, I=5, H=5), 0, F64)
    need("c", job_of(case))
    for schedule in ENGINE.schedules(job_of(case), 9, 3):
        check_kernel(kernel_of(job_of(case), "c", schedule), case, oracle(case))
    with pytest.raises(EngineError, match="steps of bypassed cannot be merged"):
        ENGINE.compile(job_of(case), "4-steps/batch")
    evaluated = job_of(case, training=False)
    assert ENGINE.schedules(evaluated, 9, 3)[0].startswith("4-steps/")


@cell(input="q[K], k[K]", state="S[K, K]", output="y[K]")
def unrolled(q, k, S):
    """Thirty products with the matrix in a step."""
    S = 0.5 * S + outer(k, k)
    for _ in range(30):
        q = q - 0.1 * (S @ q)
    return q, S


def test_long_steps_are_not_merged():
    """Four of these would be megabytes of C."""
    job = job_of(random_case(unrolled, Sizes(T=8, B=3, I=5, H=5), 0, F64))
    need("c", job)
    assert job.several is not None
    assert not any("steps" in name for name in ENGINE.schedules(job, 8, 3))


def test_merged_steps_of_no_samples():
    case = random_case(delta, Sizes(T=4, B=0, I=5, H=7), 0, F64)
    need("c", job_of(case))
    kernel = kernel_of(job_of(case), "c", "4-steps/one")
    check_kernel(kernel, case, oracle(case))


def test_lowered_programs_are_verified():
    """Accesses lie in their memory, and what is loaded is stored before."""
    case = random_case(delta, Sizes(T=4, B=2, I=5, H=7), 0, F64)
    verify(lowered_of(case))
    for chosen in MERGED:
        job = job_of(random_case(chosen, matrix_sizes(chosen, 4, 7), 0, F64)).several
        assert job is not None
        verify(lower(program(job.pair, job.spec, PRICES), 8))


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        (lambda k, S: S @ S, r"cannot multiply \[K, V\] and \[K, V\]"),
        (lambda k, S: S @ 2.0, "one side is a scalar"),
        (lambda k, S: shift(k, k), "shift moves the rows of a matrix"),
        (lambda k, S: shift(S, k), "the new row is a vector"),
        (lambda k, S: concat(S, S.T), r"cannot concat \[K, V\] and \[V, K\](?s:.*)joins columns"),
        (lambda k, S: concat(S, k), "matrices that are joined have equal columns"),
        (lambda k, S: split(S, 2)[0], r"cannot split \[K\] into 2 equal parts"),
        (lambda k, S: split(S, "K, K")[0], r"cannot split \[K\] into 'K, K', which is \[2K\]"),
        (lambda k, S: outer(concat(k, k), k) * S, r"\[2K, K\] and \[K, V\]"),
        (lambda k, S: S.T @ concat(k, k), r"\[K, V\] and \[2K\]"),
        (lambda k, S: softmax(S, axis=2), "softmax: a matrix .* has axes 0 and 1, not 2"),
        (lambda k, S: k @ S, "a vector is on the left"),
        (lambda k, S: total(S, axis=2), "has axes 0 and 1, not 2"),
        (lambda k, S: S + k, "K"),
        (lambda k, S: rows(k) + 1.0, "no value until it meets a matrix"),
    ],
)
def test_formulas_that_are_refused(formula, message):
    """With what to write instead."""

    def one(k, S):
        return total(formula(k, S) * 1.0) * k, S

    with pytest.raises((TraceError, ShapeError), match=message):
        cell(input="k[K]", state="S[K, V]", output="y[K]")(one)


def test_what_is_refused():
    """Engines of vectors alone say so."""
    net, inputs, _ = module_of(delta, 2, 3, F64)
    with elman.using(engine="deer"), pytest.raises(EngineError, match="matrix per sample"):
        net(tuple(drawn(inputs, 3, 1, seed=7)))


def test_shapes_of_matrices_in_errors():
    """Rows and columns, as they were given, and not their product; W of m2rnn is a static input."""
    net, delta = (elman.Recurrent(c, 2, 3) for c in (cells.m2rnn, cells.gated_delta_net))
    q, v, a = torch.ones(5, 4, 2), torch.ones(5, 4, 3), torch.ones(5, 4)
    message = r"state S .* must be \[1, 4, 2, 3\], got \[4, 2, 3\]: .*, batch, rows, columns"
    with pytest.raises(ShapeError, match=message):
        delta((q, q, v, a, a), torch.zeros(4, 2, 3))
    with pytest.raises(ShapeError, match=r"input W .* must be \[4, 3, 3\], got \[1, 3, 3\]: batch"):
        net((q, q, v, a), static=torch.ones(1, 3, 3))


def test_integers_into_cells_without_weights_are_refused():
    """No weight says of which type numbers are: all engines but the slowest have none of them."""
    q = torch.ones(5, 4, 2, dtype=torch.int64)
    with pytest.raises(InputError, match=r"input q .* floating-point") as caught:
        elman.Recurrent(cells.gated_delta_net, 2, 2)((q, q, q, q[..., 0], q[..., 0]))
    assert "q.float()" in str(caught.value)
