"""``heads=N`` of cells with a matrix per sample: the same as heads flattened into the batch."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves, tree_map

import elman
from elman import cells
from elman.errors import InputError, ShapeError
from elman.ir.types import dim_size, names_in
from elman.ops import columns, outer, tanh, zoneout
from helpers import need_engine

F64 = torch.float64
T, B, N, K, V = 5, 2, 3, 4, 7


@elman.cell(
    input="a, A[K, V], v[V]",
    static="g[K], W[K, V]",
    state="m, S[K, V]",
    output="Y[K, V], y[V], s",
)
def mixed(a, A, v, g, W, m, S):
    """A scalar first, matrices and numbers as inputs, static inputs, states and outputs."""
    m = 0.5 * m + a
    S = 0.5 * S + tanh(A * columns(v)) + outer(g, v) * m + W
    return S * S, S.T @ g, m, m, S


@elman.cell(input="q[K], k[K], v[V]", state="S[K, V]", output="y[V]")
def noisy(q, k, v, S):
    """Units of its output stay zero at random."""
    return zoneout(S.T @ q, 0.0 * v, 0.5), 0.5 * S + outer(k, v)


def module_of(cell, heads, *, K=K, V=V, dtype=F64, engine="reference", **options):
    """A module of a cell; sizes of one head."""
    sizes = {"K": K, "V": V, "P": K, "N": V, "R": V, "M": 2}
    first, state = (entries[0].shape for entries in (cell.inputs, cell.states))
    solved = [first[0] if first else (), (state[0][0][1],) if state else ()]
    entries = (*cell.inputs, *cell.static, *cell.states)
    further = {name for entry in entries for name in names_in(entry.shape)} - names_in((*solved,))
    totals = [heads * dim_size(dim, sizes) if dim else heads for dim in solved]
    dims = {name: heads * sizes[name] for name in further}
    return elman.Recurrent(
        cell, *totals, heads=heads, dtype=dtype, engine=engine, **dims, **options
    )


def drawn(net, T=T, B=B, seed=0, gates=True):
    """Inputs, static inputs and states of a module, with an axis of heads."""
    source = torch.Generator().manual_seed(seed)
    runtime, axis = net.runtime, () if net.runtime.head_axis else (1,) * (net.heads == 1)

    def draw(sizes, *lead):
        draws = [torch.randn(*lead, *axis, *size, generator=source, dtype=F64) for size in sizes]
        return [value.tanh() / max(1, value.shape[-1]) ** 0.5 for value in draws]

    x, static = draw(runtime.input_sizes, T, B), draw(runtime.static_sizes, B)
    return x, static, draw(runtime.state_sizes, runtime.signature.lead, B)


def call(net, x, static, state, **options):
    """A call of lists; results in a row."""
    one = {"static": static[0] if len(static) == 1 else tuple(static)} if static else {}
    return net(tuple(x), state[0] if len(state) == 1 else tuple(state), **one, **options)


def as_samples(values, axis):
    return [value.flatten(axis, axis + 1) for value in values]


def all_gradients(results, leaves):
    """Results and the gradients of leaves for cotangents that are the results' own cosines, so that
    they do not depend on how results are cut."""
    values = [v for v in tree_leaves(results) if v.requires_grad]
    return torch.autograd.grad(values, leaves, [v.detach().cos() for v in values])


LIBRARY = [c for c in cells.MATRIX if not c.weights]


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    cell=st.sampled_from([*LIBRARY, mixed]),
    steps=st.sampled_from([1, 4]),
    batch=st.sampled_from([1, 2]),
    heads=st.sampled_from([2, 3]),
    rows=st.sampled_from([1, 4]),
    columns=st.sampled_from([1, 7]),
    joined=st.booleans(),
    batch_first=st.booleans(),
)
def test_heads_are_samples(cell, steps, batch, heads, rows, columns, joined, batch_first):
    """Outputs, last states and gradients of inputs, static inputs and states are those of a module
    that is given heads as samples, to the bit."""
    net = module_of(cell, heads, K=rows, V=columns, batch_first=batch_first)
    plain = module_of(cell, 1, K=rows, V=columns)
    x, static, state = (
        [value.requires_grad_() for value in values] for values in drawn(net, steps, batch)
    )
    leaves = [*x, *static, *state]
    want = call(plain, as_samples(x, 1), as_samples(static, 0), as_samples(state, 1))
    want_grads = all_gradients(want, leaves)
    args = [v.flatten(2) if joined and len(s) == 2 else v
            for v, s in zip(x, net.runtime.input_sizes)]  # fmt: skip
    args = [v.transpose(0, 1) if batch_first else v for v in args]
    out, last = call(net, args, static, state)
    outs = [v.transpose(0, 1) if batch_first else v for v in tree_leaves(out)]
    is_joined = joined and args[0].dim() == 3 and len(net.runtime.input_sizes[0]) == 2
    for value, flat in zip(outs, tree_leaves(want[0]), strict=True):
        size = flat.shape[2:]
        side_by_side = is_joined and len(size) == 1
        assert value.shape == (
            steps,
            batch,
            *([heads * size[0]] if side_by_side else [heads, *size]),
        )
        assert torch.equal(value.reshape(steps, batch * heads, *size), flat)
    for value, flat, start in zip(tree_leaves(last), tree_leaves(want[1]), state, strict=True):
        assert value.shape == start.shape
        assert torch.equal(value.flatten(1, 2), flat)
    outs = [v.reshape(flat.shape) for v, flat in zip(outs, tree_leaves(want[0]), strict=True)]
    for one, other in zip(all_gradients((outs, last), leaves), want_grads, strict=True):
        assert torch.equal(one, other)


def test_inputs_are_not_copied():
    """Contiguous ones are views inside, in both forms; those with the batch first are time-major
    after one copy."""
    net = module_of(cells.gla, N)
    x, _, state = drawn(net)
    for rows in (x, [v.flatten(2) for v in x]):
        inside, start, _ = net.runtime.heads.enter(net, tuple(rows), state[0], {})
        assert [v.data_ptr() for v in (*inside, start)] == [v.data_ptr() for v in (*rows, *state)]
    net.batch_first = True
    inside, *_ = net.runtime.heads.enter(net, tuple(v.transpose(0, 1) for v in x), None, {})
    assert all(v.transpose(0, 1).is_contiguous() for v in inside)


def test_lengths_packed_rows_resets_and_masks():
    """Of samples, so of all their heads; padded and packed alike."""
    need_engine("c")
    net, plain = (module_of(cells.mlstm, heads, engine="c") for heads in (N, 1))
    x, _, state = drawn(net, B=3)
    flat, begin = as_samples(x, 1), as_samples(state, 1)
    source = torch.Generator().manual_seed(1)
    flags = {name: torch.rand(T, 3, generator=source) < 0.7 for name in ("mask", "reset")}
    lengths = torch.tensor([2, 5, 3])
    kinds = [{"lengths": lengths}, {"lengths": [2, 5, 3]}, flags, {**flags, "lengths": lengths}]
    for options in (*kinds, {**flags, "masked_output": "zeros", "outputs": "states"}):
        want = call(plain, flat, [], begin, **{
            name: value if isinstance(value, str)
            else torch.as_tensor(value).repeat_interleave(N, -1)
            for name, value in options.items()
        })  # fmt: skip
        got = call(net, x, [], state, **options)
        for value, other in zip(tree_leaves(got), tree_leaves(want), strict=True):
            assert torch.equal(value.flatten(1, 2), other)

    def pack(value):
        return pack_padded_sequence(value, lengths, enforce_sorted=False)

    want, last = call(net, x, [], state, **flags, lengths=lengths)
    for rows in (x, [v.flatten(2) for v in x]):
        packed = {name: pack(value) for name, value in flags.items()}
        out, after = call(net, [pack(value) for value in rows], [], state, **packed)
        assert isinstance(out, PackedSequence)
        padded, counts = pad_packed_sequence(out)
        assert torch.equal(counts, lengths)
        assert torch.equal(padded, want if rows is x else want.flatten(2))
        assert all(map(torch.equal, after, last))


@pytest.mark.parametrize("batch_first", [False, True])
def test_steps_streams_and_single_sequences(batch_first):
    """They go on where the last call ended, in the form of their first input; a stream begins anew
    for some samples."""
    net = module_of(cells.mamba2, N, batch_first=batch_first)
    (x, (A,), _), axis = drawn(net), 1 if batch_first else 0

    def laid_out(value):
        return value.transpose(0, 1) if batch_first else value

    whole = [laid_out(value) for value in x]
    static = A[0]
    want, last = net(tuple(whole), static=static)
    for joined in (False, True):
        state = None
        for t in range(T):
            row = tuple(v[t].flatten(1) if joined else v[t] for v in x)
            out, state = net.step(row, state, static=static)
            expected = want.select(axis, t)
            assert torch.equal(out, expected.flatten(1) if joined else expected)
        assert torch.equal(state, last)
    stream = elman.Stream(net, static=static)
    parts = [stream(tuple(v.narrow(axis, *at) for v in whole)) for at in ((0, 1), (1, T - 1))]
    assert torch.equal(torch.cat(parts, axis), want)
    stream.reset([1])
    assert torch.equal(stream.state[:, 0], last[:, 0])
    assert not stream.state[:, 1].any()
    one = tuple(v[:, 1] for v in x)
    for single in (one, tuple(v.flatten(1) for v in one)):
        out, end = net(single, static=A[0])
        row, _ = net.step(tuple(v[0] for v in single), static=A[0])
        assert torch.equal(end, last[:, 1])
        assert torch.equal(out.reshape(T, N, -1), want.select(1 - axis, 1))
        assert torch.equal(row, out[0])
        assert torch.equal(
            net(single, end, static=A[0])[1], net(tuple(whole), last, static=A[0])[1][:, 1]
        )


def test_directions_layers_and_forms_of_states():
    """Layers read the output of the one below head by head; joined outputs of two directions are
    those of a head beside those of the next one."""
    for options in ({"num_layers": 2, "residual": True}, {"bidirectional": True}):
        net, plain = (module_of(cells.delta_net, n, K=V, V=V, **options) for n in (N, 1))
        x, _, state = drawn(net)
        want, ends = call(plain, as_samples(x, 1), [], as_samples(state, 1))
        out, last = call(net, x, [], state)
        joined, _ = call(net, [v.flatten(2) for v in x], [], state)
        assert torch.equal(out.flatten(1, 2), want)
        assert torch.equal(joined, out.flatten(2))
        assert torch.equal(last.flatten(1, 2), ends)
        assert net.output_size == N * plain.output_size == joined.shape[-1]
    layers = [cells.delta_net, cells.titans, cells.linear_attention]
    sizes = {"heads": N, "engine": "reference", "dtype": F64}
    net, plain = elman.Recurrent(layers, N * V, N * V, **sizes), elman.Recurrent(
        layers, V, V, **{**sizes, "heads": 1}
    )  # fmt: skip
    x = drawn(net)[0]
    for _ in range(2):
        start = None if _ == 0 else last
        out, last = net(tuple(x), start)
        flat = None if start is None else tree_map(lambda v: v.flatten(0, 1), start)
        want, ends = plain(tuple(as_samples(x, 1)), flat)
        assert torch.equal(out.flatten(1, 2), want)
        for value, other in zip(tree_leaves(last), tree_leaves(ends), strict=True):
            assert torch.equal(value.flatten(0, 1), other)


def test_static_inputs_are_of_heads_or_of_samples_and_heads():
    """W [N, V, V] is that of all samples; its gradient is the sum over them."""
    net = module_of(cells.m2rnn, N)
    x, (W,), _ = drawn(net)
    one = W[0].clone().requires_grad_()
    each = one.detach().expand(B, N, V, V).contiguous().requires_grad_()
    outs = [net(tuple(x), static=value)[0] for value in (one, each)]
    assert torch.equal(*outs)
    grads = [torch.autograd.grad(out.sin().sum(), v) for out, v in zip(outs, (one, each))]
    torch.testing.assert_close(grads[0][0], grads[1][0].sum(0))
    assert torch.equal(net(tuple(x), static=(one,))[0], outs[0])


def test_derivatives():
    """First and second ones, of joined inputs too; a map over another axis."""
    net = module_of(cells.gated_delta_net, 2, K=2, V=2)
    x = [value.requires_grad_() for value in drawn(net, T=2, B=1)[0]]
    assert torch.autograd.gradcheck(lambda *row: net(row)[0], x)
    joined = [v.detach().flatten(2).requires_grad_() for v in x]
    assert torch.autograd.gradgradcheck(lambda *row: net(row)[0], joined)
    rows = tuple(torch.stack([v.detach(), 2 * v.detach()]) for v in x)
    mapped = torch.func.vmap(lambda *row: net(row)[0])(*rows)
    torch.testing.assert_close(mapped[1], net(tuple(2 * v for v in x))[0])


def test_draws_are_of_each_head():
    """Numbers drawn before a call, for heads of samples; the same as the call draws itself."""
    net, plain = module_of(noisy, N), module_of(noisy, 1)
    x, flat = drawn(net)[0], as_samples(drawn(net)[0], 1)
    for batch_first in (False, True):
        net.batch_first = batch_first
        torch.manual_seed(3)
        draws = net.draws(T, B)
        torch.manual_seed(3)
        want = plain(tuple(flat))[0].unflatten(1, (B, N))
        assert 0 < (want == 0).double().mean() < 1
        args = tuple(v.transpose(0, 1) if batch_first else v for v in x)
        out = net(args, draws=draws)[0]
        assert torch.equal(out.transpose(0, 1) if batch_first else out, want)
    net.batch_first = False
    draws, state = net.draws(T, B), None
    want, _ = net(tuple(x), draws=draws)
    for t in range(T):
        out, state = net.step(tuple(v[t] for v in x), state, draws=draws[t])
        assert torch.equal(out, want[t])
    with pytest.raises(ShapeError, match=r"\[T, B, heads, layers·directions, n\] = \[5, 2, 3"):
        net(tuple(x), draws=draws[:, :1])


def test_compiled_copied_and_saved():
    """A compiled call is one graph; copies and files have the heads."""
    need_engine("c")
    net = module_of(cells.gated_delta_net, N, dtype=torch.float32, engine="c")
    x, _, state = ([v.float() for v in values] for values in drawn(net))
    reset = torch.rand(T, B) < 0.3
    want, last = call(net, x, [], state, reset=reset)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    for rows in (x, [v.flatten(2) for v in x]):
        out, after = call(compiled, rows, [], state, reset=reset)
        assert torch.equal(out.reshape(want.shape), want)
        assert torch.equal(after, last)
    padded, _ = compiled(tuple(x), lengths=torch.tensor([2, T]))
    assert torch.equal(padded, net(tuple(x), lengths=[2, T])[0])
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    with torch.serialization.safe_globals(elman.safe_globals()):
        loaded = torch.load(file, weights_only=True)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), loaded):
        assert repr(other) == repr(net) == "Recurrent(gated_delta_net, 12, 21, engine='c', heads=3)"
        assert torch.equal(call(other, x, [], state, reset=reset)[0], want)
    assert not net.state_dict()


def test_explained_measured_and_tuned():
    """As of a batch of samples and heads; example inputs have the axis of heads."""
    need_engine("c")
    net, plain = module_of(cells.gla, N), module_of(cells.gla, 1)
    x = drawn(net)[0]
    texts = [
        elman.explain(one, tuple(rows), measure=False).all
        for one, rows in ((net, x), (plain, as_samples(x, 1)))
    ]
    assert texts[0] == texts[1]
    sizes = {"input_size": N * K, "hidden_size": N * V, "steps": T, "measure": False}
    cell = elman.explain(cells.gla.with_heads(N), **sizes, batch=B)
    one = elman.explain(cells.gla, **{**sizes, "input_size": K, "hidden_size": V}, batch=N * B)
    assert str(cell) == str(one)
    measured = elman.measure(cells.m2rnn, N * K, N * V, steps=3, batch=2, seconds=0.01, heads=N)
    assert measured.sizes == {"K": K, "V": V}
    alone = elman.measure(cells.m2rnn, K, V, steps=3, batch=2 * N, seconds=0.01)
    assert measured.flop == alone.flop > 0


@elman.cell(input="x[V]", state="S[V, V]", output="y[V]", weights="W[V, V], b[V]")
def weighted(x, S, W, b):
    S = 0.5 * S + outer(W @ x, x)
    return S @ x + b, S


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: elman.Recurrent(weighted, 6, 6, heads=2),
            r'all with the same W\[V, V\], b\[V\](.|\n)*static="W\[V, V\], b\[V\]"',
        ),
        (lambda: module_of(cells.gla, 2, K=3, V=3, learn_initial=True), "begin with the same"),
        (lambda: elman.Recurrent(cells.gla, 5, 6, heads=2), "input_size=5 cannot be divided"),
        (lambda: elman.Recurrent(cells.gla, 6, 5, heads=2), "hidden_size=5 cannot be divided"),
        (
            lambda: elman.Recurrent(cells.gated_slot_attention, 6, 6, M=3, heads=2),
            "M=3 cannot be divided among 2 heads",
        ),
        (
            lambda: elman.Recurrent([cells.gla, cells.gru], 6, 6, heads=2),
            "heads of gla, which has a matrix per sample, are samples, and those of gru are units",
        ),
    ],
)
def test_modules_that_are_refused(build, message):
    """With what to do instead."""
    with pytest.raises((InputError, ShapeError), match=message):
        build()


def test_calls_that_are_refused():
    """Shapes are told as the caller has them."""
    net = module_of(cells.retention, N)
    (q, k, v), (g,), (S,) = drawn(net)
    for x, options, message in (
        ((q[..., :3], k, v), {}, r"q .* 3 heads must be \[T, B, 3, 4\] or \[T, B, 12\]"),
        ((q, k[:, :1], v), {}, r"k .* must be \[5, 2, 3, 4\] or \[5, 2, 12\], got \[5, 1, 3, 4\]"),
        ((q, k, v[..., 0]), {}, r"v .* got \[5, 2, 3\]"),
        ((q, k), {}, "has 3 inputs"),
        ((q, k, 1.0), {}, "input of retention is a tensor"),
        ((q.float(), k, v), {}, r"k .* but input q is torch\.float32"),
        ((q, k, v), {"state": S[:, :1]}, r"S .* must be \[1, 2, 3, 4, 7\], got \[1, 1, 3, 4, 7\]"),
        ((q, k, v), {"state": (S, S)}, "has 1 state"),
        ((q, k, v), {"static": g[:, :2]}, r"decay .* must be \[3\] or \[2, 3\], got \[2, 2\]"),
        ((q, k, v), {"static": None}, "has static inputs"),
        ((q, k, v), {"lengths": [5]}, r"lengths must be \[2\]"),
        ((q, k, v), {"mask": torch.ones(T, N * B)}, r"mask must be \[T, B\] = \[5, 2\]"),
        ((q[:, 0], k[:, 0], v[:, 0]), {"static": g[0], "lengths": [5, 5]}, "a single one"),
    ):  # fmt: skip
        with pytest.raises((InputError, ShapeError), match=message):
            net(x, **{"static": g, **options})
    packed = pack_padded_sequence(q, [5, 3]), pack_padded_sequence(k, [5, 4])
    with pytest.raises(ShapeError, match="differ in their lengths"):
        net((*packed, packed[0]._replace(data=packed[0].data.new_zeros(8, N, V))), static=g)


def test_an_axis_of_heads_without_heads():
    """The error names the option."""
    net = elman.Recurrent(cells.gla, K, V)
    with pytest.raises(ShapeError, match="heads=3, with sizes of all heads"):
        net(tuple(torch.randn(T, B, 3, size) for size in (K, K, V, K)))


def test_constants_are_those_of_each_head():
    """Sizes of one head; weights would be shared, too, and are refused."""

    @elman.cell(input="q[K], v[V]", state="S[K, V]", output="y[V]", constants="A[K, K]")
    def rotated(q, v, S, A):
        S = A @ S + outer(q, v)
        return S.T @ q, S

    A = torch.randn(K, K, dtype=F64)
    net, plain = (elman.Recurrent(rotated, n * K, n * V, heads=n, A=A).double() for n in (N, 1))
    q, v = torch.randn(T, B, N, K, dtype=F64), torch.randn(T, B, N, V, dtype=F64)
    out, last = net((q, v))
    want, ends = plain((q.flatten(1, 2), v.flatten(1, 2)))
    assert torch.equal(out.flatten(1, 2), want)
    assert torch.equal(last.flatten(1, 2), ends)
