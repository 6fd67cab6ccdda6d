"""Several outputs of a cell, and the states behind every step, against loops written by hand."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils._pytree import tree_leaves

import elman
import elman.nn
from elman import cells
from elman.errors import EngineError, InputError, ShapeError
from elman.ops import mean, outer, tanh
from helpers import assert_close

F64 = torch.float64
I, H = 5, 7  # P = I: layers can be stacked, and residual


def test_results_can_be_changed_in_place():
    """They lie side by side in one array, but are no views that torch protects."""
    net, x = elman.LSTM(I, H, dtype=F64), torch.randn(6, 3, I, dtype=F64, requires_grad=True)
    (_, (h, c), _), (_, (same_h, same_c), _) = (net(x, outputs="states") for _ in range(2))
    for value in (h, c):
        value.mul_(2)
    assert_close(c, 2 * same_c)
    mine, theirs = (
        torch.autograd.grad(loss, x)[0] for loss in ((h + c).sum(), 2 * (same_h + same_c).sum())
    )
    assert_close(mine, theirs)


def test_engines_that_have_no_states_to_hand_out():
    """torch's own LSTM has no c of every step, and says so; its RNN and GRU have all there is."""
    x = torch.randn(4, 2, I)
    with pytest.raises(EngineError, match=r'with outputs="states"'):
        elman.LSTM(I, H, engine="aten")(x, outputs="states")
    out, states, _ = elman.GRU(I, H, engine="aten")(x, outputs="states")
    assert_close(states, out)
    with elman.using(engine="c"):
        torch.manual_seed(0)
        assert elman.LSTM(I, H)(x, outputs="states")[1][1].shape == (4, 2, H)


@elman.cell(input="x[I]", state="h[H], k[H]", output="y[H], z[H]", weights="W[H, I], R[H, H]")
def repeated(x, h, k, W, R):
    """Outputs and states are one value."""
    h = tanh(W @ x + R @ h + k)
    return h, h, h, h


FORMS = ("whole", "lengths", "packed", "single", "residual")


@pytest.mark.parametrize(
    "kind, form, engine",
    [
        *product(("GRU", "LSTM", "repeated"), FORMS, ("reference",)),
        *product(("GRU",), FORMS[:4], ("aten",)),
    ],
)
def test_results_share_no_memory(kind, form, engine):
    """An output that is changed in place leaves states as they were, and the other way round."""
    two = {"num_layers": 2, "residual": True} if form == "residual" else {}
    size = I if two else H
    of = elman.Recurrent if kind == "repeated" else getattr(elman, kind)
    net = of(*[repeated][: kind == "repeated"], I, size, engine=engine, **two)
    x, more = torch.randn(4, 2, I), {"lengths": [4, 2]} if form == "lengths" else {}
    x = pack_padded_sequence(x, [4, 2]) if form == "packed" else x[:, 0] if form == "single" else x
    results = [
        getattr(value, "data", value)
        for value in tree_leaves(
            net(x, outputs="states", **more), is_leaf=lambda v: isinstance(v, PackedSequence)
        )
    ]
    before = [value.detach().clone() for value in results]
    for k, value in enumerate(results):
        value.detach().fill_(9.0)
        for other, kept in zip(results[k + 1 :], before[k + 1 :], strict=True):
            torch.testing.assert_close(other.detach(), kept)


@elman.cell(input="x[I]", state="S[K, V], h[V]", weights="W[V, I], U[K, I]", output="Y[K, V]")
def matrices(x, S, h, W, U):
    """A matrix as the state, and as the output."""
    S = 0.5 * S + outer(tanh(U @ x), tanh(W @ x) + h)
    return 2 * S, S, tanh(h + W @ x)


@elman.cell(input="X[K, V]", state="C[K, V]")
def mixed(X, C):
    """It reads a matrix."""
    return X + 0.5 * C


def of_matrices(cell, *sizes, **options):
    torch.manual_seed(0)
    return elman.Recurrent(cell, *sizes, dtype=F64, engine="reference", **options)


def test_matrices_of_unlike_layers():
    """States of each layer have their own axes, as what is returned and as what is given."""
    net = of_matrices([matrices, cells.gru], I, [6, H], K=[3, None])
    x = torch.randn(4, 2, I, dtype=F64)
    lower, upper = of_matrices(matrices, I, 6, K=3), of_matrices(cells.gru, 18, H)
    for part, layer in ((lower, "l0"), (upper, "l1")):
        part.load_state_dict(
            {k.replace(layer, "l0"): v for k, v in net.state_dict().items() if layer in k}
        )
    Y, (S, h) = lower(x)
    out, last = upper(Y.flatten(-2))
    got, ((S_net, h_net), last_net) = net(x)
    for value, want in ((got, out), (S_net, S[0]), (h_net, h[0]), (last_net, last[0])):
        assert_close(value, want)
    assert S_net.shape == (2, 3, 6)
    chunks = [net(x[:1])]
    chunks.append(net(x[1:], chunks[0][1]))
    assert_close(torch.cat([chunk[0] for chunk in chunks]), out)
    assert_close(chunks[1][1][0][0], S_net)
    stream = elman.Stream(net)
    assert_close(torch.cat([stream(x[:2]), stream(x[2:])]), out.detach())
    stream.reset([1])
    assert not stream.state[0][0][1].any()
    with pytest.raises(ShapeError, match=r"S is a matrix \[3, 6\] of each sample, got \[2, 18\]"):
        net(x, [(S_net.flatten(1), h_net), last_net])
    with pytest.raises(ShapeError, match=r"state S_l0 of .* must be \[2, 3, 6\], got \[1, 3, 6\]"):
        net(x, [(S_net[:1], h_net), last_net])


def test_matrices_of_two_directions():
    """Their columns lie side by side, of outputs and of the states of every step."""
    net = of_matrices(matrices, I, 6, K=3, bidirectional=True)
    one, x = of_matrices(matrices, I, 6, K=3), torch.randn(4, 2, I, dtype=F64)
    halves = []
    for end, flips in (("", []), ("_reverse", [0])):
        weights = {k: net.state_dict()[k + end] for k in one.state_dict()}
        one.load_state_dict(weights)
        Y, (S, h), last = one(x.flip(flips), outputs="states")
        halves.append([*(value.flip(flips) for value in (Y, S, h)), *last])
    out, states, last = net(x, outputs="states")
    for value, pair in zip((out, *states), zip(*halves), strict=False):
        assert_close(value, torch.cat(pair, -1))
    assert out.shape == (4, 2, 3, 12)
    for k, value in enumerate(last, 3):
        assert_close(value, torch.cat([half[k] for half in halves]))


def test_layers_that_read_matrices():
    """A matrix goes up as it is; a vector reads its rows side by side; all else is told."""
    x = torch.randn(4, 2, I, dtype=F64)
    net = of_matrices([matrices, mixed, cells.gru], I, [6, 6, H], K=[3, 3, None])
    lower, upper = of_matrices(matrices, I, 6, K=3), of_matrices(mixed, 6, 6, K=3)
    lower.load_state_dict({k: v for k, v in net.state_dict().items() if "l0" in k})
    out, last = upper(lower(x)[0])
    assert_close(net(x)[1][1], last[0])
    top = of_matrices(cells.gru, 18, H)
    top.load_state_dict(
        {k.replace("l2", "l0"): v for k, v in net.state_dict().items() if "l2" in k}
    )
    assert_close(net(x)[0], top(out.flatten(-2))[0])
    assert_close(
        of_matrices(mixed, 6, 6, K=3, num_layers=2, residual=True)(out)[0],
        upper(upper(out)[0])[0] + upper(out)[0],
    )
    both = of_matrices(matrices, I, 6, K=3, bidirectional=True)  # as the hint of a refusal says
    assert upper(both(x)[0][..., :6])[0].shape == upper(out)[0].shape
    refused = [
        ([cells.gru, mixed], [18, 6], {}, r"X\[K, V\] is a matrix, and the output .* is 18 units"),
        (
            [matrices, mixed],
            6,
            {"bidirectional": True},
            r"is a matrix \[3, 6\] of each direction(.|\n)*upper\(lower\(x\)\[0\]\[\.\.\., :6\]\)",
        ),
        ([matrices, mixed], [5, 6], {}, r"hidden_size is 6, but the first state C\[K, V\] has"),
        ([matrices, mixed], 6, {"K": [3, 2]}, r"X\[K, V\] is \[2, 6\], and the output .* \[3, 6\]"),
        ([matrices, mixed], [5, 6], {}, r"layer below: a matrix \[3, 5\]"),
    ]
    for stack, sizes, more, text in refused:
        rows = [None if cell is cells.gru else 3 for cell in stack]
        with pytest.raises((InputError, ShapeError), match=text):
            of_matrices(stack, I, sizes, **{"K": rows, **more})


def test_projected_states():
    """h is the projection, c is as wide as the cell."""
    net = elman.LSTM(I, H, proj_size=3)
    out, (h, c), _ = net(torch.randn(4, 2, I), outputs="states")
    assert out.shape == h.shape == (4, 2, 3)
    assert c.shape == (4, 2, H)


def test_a_name_that_is_none():
    with pytest.raises(InputError, match="outputs must be None or \"states\", got 'state'") as told:
        elman.GRU(I, H)(torch.randn(4, 2, I), outputs="state")
    assert 'net(x, outputs="states")' in str(told.value)


def test_first_outputs_that_are_scalars():
    """A layer above has to read a vector; one layer, or two directions, do not."""

    @elman.cell(input="x[I]", state="h[H]", output="e, y[H]", weights="W[H, I], R[H, H]")
    def scalar_first(x, h, W, R):
        h = tanh(W @ x + R @ h)
        return mean(h), 2 * h, h

    x = torch.randn(4, 2, I)
    (e, y), h = elman.Recurrent(scalar_first, I, H)(x)
    assert e.shape == (4, 2)
    assert y.shape == (4, 2, H)
    assert_close(y[-1] / 2, h[-1])
    with pytest.raises(InputError, match="scalar_first has a scalar output"):
        elman.Recurrent(scalar_first, I, H, 2)


def test_shown_by_name():
    """explain and draw say which output is which; one that is a state has the state's name."""

    @elman.cell(input="x[I]", state="h[H]", output="y[P], e, k[H]", weights="W[H, I], C[P, H]")
    def shown(x, h, W, C):
        h = tanh(W @ x + h)
        return C @ h, mean(h * h), h, h

    text = elman.explain(shown, input_size=4, hidden_size=6, P=3, measure=False).all
    for part in ("next: h′, y = C @ h′, e = mean", "k = h′", "output: y, e, h′", "∂C += dout.y ⊗"):
        assert part in text, part
    assert "dout.k" in text
    svg = elman.draw(shown, P=3).svg
    for part in ("out.y", "out.e", "dout.y", "dout.k"):
        assert part in svg, part


def test_arguments_that_stand_elsewhere():
    """What belongs to a call is told so where a module is made."""
    for name in ("outputs", "reset", "lengths"):
        with pytest.raises(InputError, match=f"{name} is an argument of each call") as told:
            elman.Recurrent(cells.gru, I, H, **{name: None})
        assert f"net(x, {name}=…)" in str(told.value)
