"""What a sequence begins with that is given no state: parameters (``learn_initial=``), or what the
cell says (``init=``)."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import elman
from elman import cells
from elman.errors import InputError, ShapeError
from elman.ops import mean, tanh
from helpers import assert_close, forced

F64 = torch.float64
I, H, T, B = 5, 6, 7, 3


KINDS = ("RNN", "GRU", "LSTM")


BEGUN = torch.linspace(-1, 1, H, dtype=F64)


@elman.cell(
    input="x[I]", state="h[H], n, k[H]", weights="W[H, I], R[H, H]", init={"h": BEGUN, "n": -1.5}
)
def begins(x, h, n, k, W, R):
    h = tanh(W @ x + R @ h + n)
    return h, 0.5 * n + mean(h), 0.3 * k + h


def made(kind: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    if kind is begins:
        return elman.Recurrent(kind, I, H, dtype=F64, **options)
    if isinstance(kind, str):
        net = getattr(elman, kind)(I, H, learn_initial=True, dtype=F64, **options)
    else:
        net = elman.Recurrent(kind, I, H, learn_initial=True, dtype=F64, **options)
    with torch.no_grad():
        for name, value in net.named_parameters():
            if name.startswith("initial_"):
                value.normal_()
    return net


@pytest.mark.parametrize("kind", KINDS)
def test_begins_as_torchs(kind):
    """Zeros at first and after a reset of parameters, and the draws are torch's."""
    torch.manual_seed(0)
    net = getattr(elman, kind)(I, H, learn_initial=True)
    torch.manual_seed(0)
    theirs = getattr(nn, kind)(I, H)
    for name, value in theirs.named_parameters():
        assert torch.equal(value, net.get_parameter(name))
    x = torch.randn(T, B, I)
    assert_close(net(x)[0], theirs(x)[0])
    with torch.no_grad():
        net.initial_h.fill_(3.0)
    net.reset_parameters()
    assert not net.initial_h.any()
    assert "learn_initial=True" in repr(net)
    assert getattr(elman, kind)(I, H, heads=2, learn_initial=True).initial_h.shape == (1, H)


def test_what_a_cell_says():
    """Of each layer and direction; other states begin with zeros; it is saved, moved, and never
    trained."""
    net = made(begins, num_layers=2, bidirectional=True)
    assert_close(net.initial_h, BEGUN.expand(4, H))
    assert net.initial_n.tolist() == [-1.5] * 4
    assert not net.initial_k.any()
    assert {name.partition("_l")[0] for name, _ in net.named_parameters()} == {"W", "R"}
    with torch.no_grad():
        net.initial_h.zero_()
    again = pickle.loads(pickle.dumps(net))
    assert not again.initial_h.any()
    again.load_state_dict(made(begins, num_layers=2, bidirectional=True).state_dict())
    net.reset_parameters()
    assert torch.equal(net.initial_h, again.initial_h)
    assert net.float().initial_n.dtype == torch.float32
    assert net(torch.ones(T, B, I))[0].dtype == torch.float32


def test_what_a_cell_says_is_learned_from_there():
    """``learn_initial=`` makes it a parameter; of layers with states of their own by layer."""
    net = elman.Recurrent([cells.gru, begins], I, [3, H], learn_initial=True, dtype=F64)
    names = [name for name, _ in net.named_parameters() if "initial" in name]
    assert names == ["initial_h_l0", "initial_h_l1", "initial_n_l1", "initial_k_l1"]
    assert not net.initial_h_l0.any()
    assert_close(net.initial_h_l1, BEGUN[None])
    mixed = elman.Recurrent([cells.gru, begun_gru], I, [H, H], dtype=F64)
    assert_close(mixed.initial_h, torch.stack((torch.zeros(H), torch.full((H,), 2.0))).double())
    with pytest.raises(ShapeError, match=r"init of h\[H\] is \[6\], not \[5\]"):
        elman.Recurrent(begins, I, 5)


@elman.cell(input="x[I]", state="h[H]", weights="W[H, I]", init={"h": lambda h: h.fill_(2.0)})
def begun_gru(x, h, W):
    return tanh(W @ x) * h


def test_a_cells_begins_with_zeros():
    net = elman.Recurrent(cells.lstm, I, H, 2, learn_initial=True)
    assert net.initial_c.shape == (2, H)
    assert not net.initial_c.any()
    assert "learn_initial=True" in repr(net)
    again = copy.deepcopy(net)
    again.load_state_dict(net.state_dict())


def test_torchs_layers_have_none():
    """Where torch's own layer would run, nothing begins with zeros."""
    net, x = made("GRU"), torch.ones(T, B, I, dtype=F64)
    with forced("aten"):
        want = net(x)[0]
        assert_close(want[0], net.step(x[0])[0])
    half = net.to(torch.bfloat16)(x.bfloat16())[0]
    torch.testing.assert_close(half.double(), want, rtol=0.05, atol=0.02)
    with pytest.raises(InputError, match="reset_to must be 'zeros' or 'initial'"):
        net.double()(torch.ones(T, B, I, dtype=F64), reset=torch.ones(T, B), reset_to="learned")
