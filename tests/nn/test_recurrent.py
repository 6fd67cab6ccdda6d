"""Recurrent: names, initialisation, layers and directions, layouts, further inputs, bad input."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch import nn

import elman
import elman.nn
from elman import cells, ops
from elman.errors import EngineError, InputError, ShapeError
from elman.frontend.cell import cell
from elman.frontend.initial import SCHEMES
from helpers import OwnBackwardEngine, need_engine, stand_in


@cell(input="x[I], m, k[P]", state="h[H], s, q[P]", weights="W[H, I], R[H, H], U[P, H], a, b[H]")
def mixed(x, m, k, h, s, q, W, R, U, a, b):
    """States of two sizes and a scalar; further inputs; one option."""
    h = ops.tanh(W @ x + R @ (m * h) + s * b)
    return h, a * s + ops.mean(h), ops.tanh(U @ h + k * q)


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H], C[P, H]", output="y[P]")
def readout(x, h, W, R, C):
    """Its output is no state."""
    h = ops.tanh(W @ x + R @ h)
    return C @ h, h


@cell(
    input="x[I]",
    state="h[H]",
    weights="W[H, I], R[H, H], g[H], b[H]",
    init={"R": "orthogonal", "g": 1, "b": "zeros"},
)
def started(x, h, W, R, g, b):
    """Its weights start as it says."""
    return ops.tanh(W @ x + R @ h) * g + b


@cell(input="x[I]", state="h[H]", weights="W[H, I], R[H, H]")
def optional(x, h, W, R, *, activation=ops.tanh, leak=0.5):
    """It takes options."""
    return leak * h + (1 - leak) * activation(W @ x + R @ h)


def made(*args, engine="reference", **options):
    """A module on the reference unless a test says otherwise: nothing is compiled here."""
    return elman.Recurrent(*args, engine=engine, **options)


def test_names_shapes_and_draws():
    """Parameters are named after the weights, in declared order, drawn from U(-1/√H, 1/√H)."""
    torch.manual_seed(0)
    net = made(cells.gru, 5, 4, 2, bidirectional=True)
    first = [f"{name}_l0" for name in ("W", "R", "b", "c")]
    names = [*first, *(f"{n}_reverse" for n in first)]
    names += [name.replace("l0", "l1") for name in names]

    assert [name for name, _ in net.named_parameters()] == names
    assert net.W_l0.shape == (12, 5)
    assert net.W_l1_reverse.shape == (12, 8)
    torch.manual_seed(0)
    for value in net.parameters():
        assert torch.equal(value, torch.empty_like(value).uniform_(-0.5, 0.5))
    torch.manual_seed(0)
    before = [value.clone() for value in net.parameters()]
    net.reset_parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))


def test_initial_values_of_the_cell():
    """Numbers and schemes; what has none is drawn."""
    net = made(started, 3, 4)
    torch.testing.assert_close(net.R_l0 @ net.R_l0.T, torch.eye(4))
    assert torch.equal(net.g_l0, torch.ones(4))
    assert not net.b_l0.count_nonzero()
    assert net.W_l0.abs().max() <= 1 / math.sqrt(4)


def began(how, weights="R[2H, H], b[H], s"):
    """A cell of which one weight begins as it is told."""

    def step(x, h, R, b, s):
        return ops.tanh(ops.split(R @ h, 2)[0] + s * b + x)

    return cell(input="x[H]", state="h[H]", weights=weights, init=how)(step)


def test_initial_values_from_arrays_and_functions():
    """Copied, not kept; a function fills the parameter or returns a value; every layer, anew."""
    ramp = torch.arange(8.0).reshape(4, 2).requires_grad_()
    filled = []

    def fill(weight):
        filled.append(weight)
        weight.copy_(ramp)

    for how in (ramp, ramp.detach().numpy().astype("float64"), fill, lambda w: ramp, ramp.double()):
        net = made(began({"R": how}), 2, 2, 2)
        for weight in (net.R_l0, net.R_l1):
            assert torch.equal(weight, ramp)
            assert weight.is_leaf
            assert weight.data_ptr() != ramp.data_ptr()
        with torch.no_grad():
            net.R_l0.add_(1)
        net.reset_parameters()
        assert torch.equal(net.R_l0, ramp)
    assert len(filled) == 4
    net = made(began({"R": nn.init.eye_, "b": lambda w: 0.5, "s": np.float32(2)}), 2, 2)
    assert torch.equal(net.R_l0, torch.eye(4, 2))
    assert torch.equal(net.b_l0, torch.full((2,), 0.5))
    assert net.s_l0 == 2
    assert made(began({"s": torch.tensor(3.0)}), 2, 2, dtype=torch.float64).s_l0 == 3


@pytest.mark.parametrize("how", [torch.ones(4, 3), np.ones(2), lambda w: torch.ones(4, 2, 1)])
def test_initial_values_of_another_shape(how):
    """Nothing is broadcast into a weight; both shapes are told."""
    with pytest.raises(ShapeError, match=r"init of R\[2H, H\] is \[.*\], not \[4, 2\]"):
        made(began({"R": how}), 2, 2)


@cell(input="x[H]", state="h[H]", weights="R[H, H], V[H, P]", output="y[H]")
def summed(x, h, R, V):
    """Rows that are normalised, and sums of whole matrices."""
    h = ops.tanh(x + (R @ h) / (1 + ops.sum(R * R, axis=1)) + ops.mean(V) - ops.mean(R, axis=0))
    return h + ops.sum(V, axis=1) * ops.sum(R), h


def summed_by_torch(x, R, V):
    out, h = [], x.new_zeros(x.shape[1:])
    for step in x:
        h = torch.tanh(step + (h @ R.T) / (1 + (R * R).sum(1)) + V.mean() - R.mean(0))
        out.append(h + V.sum(1) * R.sum())
    return torch.stack(out)


@pytest.mark.parametrize("engine", ["c", "reference"])
def test_sums_of_weights(engine):
    """Over rows, columns and both, with their gradients."""
    need_engine(engine)
    net = made(summed, 4, 4, P=3, dtype=torch.float64, engine=engine)
    x = torch.randn(5, 2, 4, dtype=torch.float64, requires_grad=True)
    values = (x, net.R_l0, net.V_l0)
    want = summed_by_torch(*values)
    got = net(x)[0]
    torch.testing.assert_close(got, want)
    draw = torch.randn_like(want)
    wanted = torch.autograd.grad(want, values, draw)
    torch.testing.assert_close(torch.autograd.grad(got, values, draw), wanted)


def test_options_are_shown():
    """Of the cell, and of the module."""
    told = "Recurrent(optional, 3, 4, activation=relu, leak=0.25, num_layers=2, engine='reference')"
    assert str(made(optional, 3, 4, activation=ops.relu, leak=0.25, num_layers=2)) == told


BAD_CALLS = {
    "rank": (
        lambda: torch.zeros(2, 3, 4, 5),
        ShapeError,
        "input x of gru must be [T, B, 5], or unbatched [T, 5], got [2, 3, 4, 5]",
    ),
    "size": (
        lambda: torch.zeros(2, 3, 6),
        ShapeError,
        "input x of gru must be [T, B, 5], got [2, 3, 6]",
    ),
    "size, unbatched": (
        lambda: torch.zeros(2, 6),
        ShapeError,
        "input x of gru must be [T, B, 5], or unbatched [T, 5], got [2, 6]",
    ),
    "dtype": (
        lambda: torch.zeros(2, 3, 5).double(),
        InputError,
        "input x of gru is torch.float64, but its weights are torch.float32\n"
        "  hint  x.to(torch.float32), or net.to(torch.float64)",
    ),
    "whole numbers": (
        lambda: torch.zeros(2, 3, 5, dtype=torch.long),
        InputError,
        "input x of gru is torch.int64, but its weights are torch.float32\n"
        "  hint  x.to(torch.float32)$",
    ),
    "complex numbers": (
        lambda: torch.zeros(2, 3, 5, dtype=torch.complex64),
        InputError,
        "input x of gru is torch.complex64, but its weights are torch.float32\n  hint  x.real$",
    ),
    "device": (
        lambda: torch.zeros(2, 3, 5, device="meta"),
        InputError,
        "input x of gru is on meta, but its weights are on cpu\n  hint  x.to('cpu')",
    ),
    "no steps": (
        lambda: torch.zeros(0, 3, 5),
        ShapeError,
        "input x of gru has no steps: [0, 3, 5]",
    ),
    "no tensor": (
        lambda: [[1.0]],
        InputError,
        "input of gru is a tensor, got list\n  hint  torch.as_tensor",
    ),
    "no numbers": (lambda: "x", InputError, "input of gru is a tensor, got str$"),
    "inputs": (
        lambda: (torch.zeros(2, 3, 5),) * 2,
        InputError,
        "gru has 1 input, x, but 2 were given\n  hint  net(x)$",
    ),
    "sparse": (
        lambda: torch.zeros(2, 3, 5).to_sparse(),
        InputError,
        "input of gru is torch.sparse_coo, not dense\n  hint  give x.to_dense()",
    ),
    "sparse rows": (
        lambda: torch.eye(5).to_sparse_csr(),
        InputError,
        "input of gru is torch.sparse_csr, not dense\n  hint  give x.to_dense()",
    ),
    **{
        f"nested, {layout}": (
            lambda layout=layout: torch.nested.nested_tensor(
                [torch.zeros(2, 5), torch.zeros(3, 5)], layout=layout
            ),
            InputError,
            "input of gru is a nested tensor\n  hint  torch.nested.to_padded_tensor(x, 0.0), and",
        )
        for layout in (torch.strided, torch.jagged)
    },
}


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls(case):
    """Each mistake is told with the cell and the input, and what would be right."""
    make, error, text = BAD_CALLS[case]
    with pytest.raises(error, match=re.escape(text.rstrip("$")) + "$" * (text[-1] == "$")):
        made(cells.gru, 5, 4)(make())


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_bad_calls_elsewhere():
    """Axes in the module's order; sparse and nested tensors in every other door."""
    net = made(cells.gru, 5, 4, batch_first=True)
    with pytest.raises(ShapeError, match=re.escape("[B, T, 5], or unbatched [T, 5], got [5]")):
        net(torch.zeros(5))
    sparse = torch.zeros(2, 3, 5).to_sparse()
    nested = torch.nested.nested_tensor([torch.zeros(2, 5), torch.zeros(3, 5)])
    x = torch.zeros(2, 3, 5)
    for call, text in (
        (lambda: net(x, sparse), "state of gru is torch.sparse_coo, not dense"),
        (lambda: net.step(nested), "step: x is a nested tensor"),
        (lambda: net(nested, lengths=[2, 3]), "input of gru is a nested tensor"),
        (lambda: net(sparse, lengths=[2, 3]), "input of gru is torch.sparse_coo"),
    ):
        with pytest.raises(InputError, match=text):
            call()


def test_masks():
    """A bool tensor is numbers of the weights' type, as any input and as a state."""

    @cell(input="m, x[I]", state="h[H]", weights="W[H, I]")
    def held(m, x, h, W):
        return ops.where(m, ops.tanh(W @ x + h), h)

    net = made(held, 1, 4, I=3, dtype=torch.float64)
    x, m = torch.randn(5, 2, 3, dtype=torch.float64), torch.rand(5, 2) < 0.5
    for mask, start in ((m, None), (m, torch.ones(1, 2, 4) > 0)):
        got = net((mask, x), start)
        want = net((mask.double(), x), None if start is None else start.double())
        for a, b in zip(got, want):
            assert torch.equal(a, b)
    torch.testing.assert_close(net((m, x), None, lengths=[5, 3])[0][:3], net((m, x))[0][:3])
    assert torch.equal(net((m, x > 0))[0], net((m, (x > 0).double()))[0])

    @cell(input="m, x[H]", state="h[H]")
    def plain(m, x, h):
        return m * x + h

    x = x[..., :3]
    assert made(plain, 1, 3)((m, x))[0].dtype == torch.float64
    assert made(plain, 1, 3)((m, x > 0))[0].dtype == torch.get_default_dtype()
    with pytest.raises(InputError, match=r"input x of plain is .*16, but input m is torch.float64"):
        made(plain, 1, 3)((m.double(), x.half()))


def test_dropout_of_one_layer_warns():
    """In torch's words: there is nothing between layers."""
    with pytest.warns(UserWarning, match="dropout option") as ours:
        elman.Recurrent(cells.gru, 3, 4, dropout=0.5)
    with pytest.warns(UserWarning, match="dropout option") as theirs:
        nn.GRU(3, 4, dropout=0.5)
    assert str(ours[0].message) == str(theirs[0].message)
    assert ours[0].filename == __file__


def test_bad_states():
    """Number, shape and dtype of initial states; mixed batches of inputs."""
    net = made(cells.lstm, 5, 4)
    x = torch.zeros(2, 3, 5)
    with pytest.raises(
        InputError, match=r"lstm has 2 states, \(h, c\), but 1 .*\n  hint  net\(x, \(h, c\)\)$"
    ):
        net(x, torch.zeros(1, 3, 4))
    with pytest.raises(
        ShapeError, match=r"state h of lstm must be \[1, 3, 4\], got \[1, 2, 4\]: layers · dir"
    ):
        net(x, (torch.zeros(1, 2, 4), torch.zeros(1, 3, 4)))
    with pytest.raises(
        ShapeError, match=r"got \[3\]: layers · (.|\n)*hint  lengths=…, .* are given by name$"
    ):
        made(cells.mgu, 5, 4)(x, torch.tensor([2, 1, 2]))
    with pytest.raises(
        InputError, match=r"state c of lstm is torch.float64, but input x is torch.float32"
    ):
        net(x, (torch.zeros(1, 3, 4), torch.zeros(1, 3, 4).double()))
    mix = made(mixed, 5, 4, P=2)
    with pytest.raises(ShapeError, match="input m of mixed has T, B = 2, 4, but x has 2, 3"):
        mix((x, torch.zeros(2, 4), torch.zeros(2, 3, 2)))
    with pytest.raises(InputError, match=r"mixed has 3 inputs, \(x, m, k\), but 1 was given"):
        mix(x)


def test_bad_construction():
    """Sizes, options, dims, engines; what is no cell."""
    with pytest.raises(InputError, match="Recurrent takes a cell, not function"):
        made(lambda x, h: h, 3, 4)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"not str(.|\n)*hint  elman\.cells\.mgu$"):
        made("mgu", 3, 4)  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"neither a dim nor an option .*options: activation, leak"
    ):
        made(optional, 3, 4, speed=3)
    with pytest.raises(InputError, match="Recurrent has no argument 'speed'"):
        made(optional, 3, 4, speed=None)
    with pytest.raises(ShapeError, match=r"readout, layer 0: unknown dim P"):
        made(readout, 3, 4)
    with pytest.raises(InputError, match="hidden_size must be at least 1, got 0"):
        made(cells.gru, 3, 0)
    with pytest.raises(InputError, match="input_size should be of type int, got: float"):
        made(cells.gru, 3.0, 4)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="num_layers must be at least 1, got 0"):
        made(cells.gru, 3, 4, 0)
    with pytest.raises(InputError, match="dropout must be"):
        made(cells.gru, 3, 4, dropout=2.0)
    with pytest.raises(EngineError, match="no engine 'cudnn'"):
        made(cells.gru, 3, 4, engine="cudnn")
    with pytest.raises(EngineError, match="engine aten cannot run mgu: mgu is not the formula"):
        made(cells.mgu, 3, 4, engine="aten")(torch.zeros(2, 2, 3))


@pytest.mark.parametrize("engine", ["reference", "c"])
def test_weights_that_do_not_fit(engine, monkeypatch):
    """What stands in a weight's place is checked before a kernel reads its memory."""
    if engine == "c":
        stand_in(monkeypatch, OwnBackwardEngine())
    net = made(cells.gru, 3, 4, engine=engine)
    x = torch.zeros(2, 2, 3)
    wrong = {"R_l0": torch.zeros(12, 3)}
    with pytest.raises(ShapeError, match=r"weight R\[3H, H\] is \[12, 3\], not \[12, 4\]"):
        torch.func.functional_call(net, wrong, (x,))
    net.b_l0 = nn.Parameter(torch.zeros(12, dtype=torch.float64))
    with pytest.raises(InputError, match=r"weight b\[3H\] is torch.float64 on cpu, but the input"):
        net(x)


@cell(input="x[I], m[I]", state="h[H]", weights="W[H, I]")
def masked(x, m, h, W):
    """A mask of the input's size."""
    return ops.tanh(W @ (m * x) + h)


@cell(input="x[I]", static="s[I]", state="h[H]", weights="W[H, I]")
def scaled(x, s, h, W):
    """A scale of the input, the same in all steps."""
    return ops.tanh(W @ (s * x) + h)


@pytest.mark.parametrize(
    "follower, entry, shared",
    [
        (masked, "m[I]", "get the same further inputs"),
        (scaled, "s[I]", "get the same static inputs"),
    ],
)
def test_what_all_layers_share_has_one_size(follower, entry, shared):
    """What all layers read and follows the input's size fits only where layers read inputs of one
    size. Kernels would read beyond its end."""
    told = (
        f"{follower.name}, layer 1: {entry} has size 8 here and 5 in layer 0, but all layers "
        f"{shared}\n"
        f"  hint  no num_layers=, but one cell per layer, without {entry[0]} above: "
        f"Recurrent([{follower.name}, …], …)"
    )
    with pytest.raises(ShapeError, match=f"^{re.escape(told)}$"):
        made(follower, 5, 8, num_layers=2)
    made(follower, 5, 8)
    made(follower, 8, 8, num_layers=2)
    with pytest.raises(ShapeError, match=r"has size 16 here and 8 in layer 0"):
        made(follower, 8, 8, num_layers=2, bidirectional=True)


def test_a_layer_that_cannot_read_the_one_below_says_what_it_reads():
    @cell(input="x[H]", state="h[H]", weights="R[H, H]")
    def square(x, h, R):
        return ops.tanh(x + R @ h)

    with pytest.raises(ShapeError) as caught:
        made(square, 8, 8, num_layers=2, bidirectional=True)
    assert str(caught.value) == (
        "square, layer 1: hidden_size is 8, but the first state h[H] has 16 units\n"
        "  input x[H] is the output of the layer below: 16 units, not 8\n"
        "  hint  modules of one layer each, one after the other, may differ in their sizes"
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_begins_a_matrix(scheme):
    """As torch.nn.init draws it; a recurrence that starts as the identity (Le et al. 2015)."""

    @cell(input="x[I]", state="h[H]", weights="R[H, I+H]", init={"R": scheme})
    def drawn(x, h, R):
        return ops.relu(R @ ops.concat(x, h))

    torch.manual_seed(3)
    weight = made(drawn, 2, 4).R_l0
    torch.manual_seed(3)
    assert torch.equal(weight, getattr(nn.init, f"{scheme}_")(torch.empty(4, 6)))
