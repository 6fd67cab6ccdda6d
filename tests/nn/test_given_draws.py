"""``draws=``: random numbers that are drawn first, used in steps and again in whole sequences."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.utils.rnn import pack_padded_sequence

import elman
from conformance.formulas import noisy
from elman import cells, ops
from elman.errors import EngineError, InputError, ShapeError
from elman.frontend.cell import cell
from helpers import assert_close

F64 = torch.float64
T, B, I, H = 7, 4, 5, 13


@cell(input="x[I]", state="h[H], c[H]", weights="W[H, I], R[H, H]")
def once(x, h, c, W, R):
    """Draws per sequence alone."""
    c = 0.5 * c + ops.tanh(W @ x + R @ ops.dropout(h, 0.5, per="sequence"))
    return ops.sin(c), c


MODULES: dict[str, Callable[..., Any]] = {
    "gru": lambda **more: elman.GRU(I, H, zoneout=0.3, recurrent_dropout=0.4, **more),
    "lstm, layers": lambda **more: elman.LSTM(I, H, 2, zoneout={"h": 0.3, "c": 0.1}, **more),
    "both": lambda **more: elman.Recurrent(noisy, I, H, **more),
    "once": lambda **more: elman.Recurrent(once, I, H, 3, **more),
}


def made(name: str, **options: Any) -> Any:
    """A module in float64."""
    torch.manual_seed(0)
    return MODULES[name](dtype=F64, **options)


def test_packed_sequences():
    """Draws are packed as x is."""
    net, x = made("both"), torch.randn(T, B, I, dtype=F64)
    draws = net.draws(T, B)
    packed, cut = (pack_padded_sequence(v, [7, 7, 5, 2]) for v in (x, draws[..., :1]))
    with pytest.raises(InputError, match="draws is packed as x is"):
        net(packed, draws=draws)
    with pytest.raises(ShapeError, match=r"packed draws must be \[N, .*\] = \[21, 1, \d\]"):
        net(packed, draws=cut)


def test_numbers_of_a_sequence_are_those_of_its_step():
    """So that rollouts joined in time stay what they were, and an episode may have its own."""
    net, x = made("once"), torch.randn(T, B, I, dtype=F64)
    first, second = net.draws(3, B), net.draws(T - 3, B)
    assert (first == first[0]).all()
    assert not torch.equal(first[0], second[0])
    out, state = net(x[:3], draws=first)
    rest, last = net(x[3:], state, draws=second)
    got, end = net(x, draws=torch.cat([first, second]))
    assert_close(got, torch.cat([out, rest]))
    for one, other in zip(end, last, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64])
def test_types_that_buffers_keep(dtype):
    """Any that holds 24 bits."""
    net, x = made("both"), torch.randn(T, B, I, dtype=F64)
    draws = net.draws(T, B)
    assert torch.equal(net(x, draws=draws.to(dtype))[0], net(x, draws=draws)[0])


def test_half_precision_and_autocast():
    """Draws keep all of their bits."""
    net, x = made("both").bfloat16(), torch.randn(T, B, I).bfloat16()
    draws, net.precision = net.draws(T, B), "ieee"
    whole = copy.deepcopy(net).float()
    want = whole(x.float(), draws=draws)[0].bfloat16()
    assert torch.equal(net(x, draws=draws)[0], want)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(whole(x.float(), draws=draws)[0], want)


def test_draws_by_vmap():
    """Several draws of one call, where nothing else is mapped."""
    net, x = made("both"), torch.randn(T, B, I, dtype=F64)
    several = torch.stack([net.draws(T, B) for _ in range(3)])
    got = vmap(lambda draws: net(x, draws=draws)[0])(several)
    for one, draws in zip(got, several, strict=True):
        assert_close(one, net(x, draws=draws)[0])


def test_dropout_of_torch_is_none_of_it():
    """Neither between layers nor of weights."""
    for options in ({"dropout": 0.5}, {"weight_dropout": 0.5}):
        net, x = made("lstm, layers", **options), torch.randn(T, B, I, dtype=F64)
        draws = net.draws(T, B)
        torch.manual_seed(1)
        one, other = (net(x, draws=draws)[0] for _ in range(2))
        assert not torch.equal(one, other)
        torch.manual_seed(1)
        assert torch.equal(net(x, draws=draws)[0], one)


MISTAKES: dict[str, tuple[Callable[[Tensor], Any], type[Exception], str]] = {
    "a step is missing": (
        lambda d: d[1:],
        ShapeError,
        r"draws must be \[T, B, layers·directions, n\] = \[7, 4, 1, 4\], got \[6, 4, 1, 4\]",
    ),
    "turned": (lambda d: d.transpose(0, 1), ShapeError, r"draws\.transpose\(0, 1\)"),
    "of another module": (lambda d: d[..., :2], ShapeError, r"got \[7, 4, 1, 2\]"),
    "bfloat16": (lambda d: d.bfloat16(), InputError, "24 bits, as int32, got torch.bfloat16"),
    "a list": (lambda d: [*d], InputError, r"got list\n *hint  torch\.stack\(draws\)"),
    "elsewhere": (lambda d: d.to("meta"), InputError, "draws is on meta, but x is on cpu"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_draws_that_do_not_fit(mistake):
    """Are refused, with what was meant."""
    change, kind, text = MISTAKES[mistake]
    net = made("gru")
    with pytest.raises(kind, match=text):
        net(torch.randn(T, B, I, dtype=F64), draws=change(net.draws(T, B)))


def test_what_a_step_refuses():
    """Draws that are those of all steps, or of a batch."""
    net, x = made("gru"), torch.randn(T, B, I, dtype=F64)
    draws = net.draws(T, B)
    text = r"draws must be \[4, 1, 4\], \[B, layers·directions, n\], got \[7, 4, 1, 4\]"
    with pytest.raises(ShapeError, match=text):
        net.step(x[0], draws=draws)
    text = r"draws must be \[1, 4\], \[layers·directions, n\], got \[4, 1, 4\]"
    with pytest.raises(ShapeError, match=text):
        net.step(x[0, 0], draws=draws[0])


def test_nothing_is_drawn():
    """By a cell without random numbers, nor in evaluation; draws can be drawn there."""
    for net in (elman.GRU(I, H), elman.Recurrent(cells.mgu, I, H)):
        for call in (net.draws, lambda *sizes, net=net: net(torch.ones(*sizes, I), draws=1)):
            with pytest.raises(InputError, match=r"draws no random numbers(.|\n)*zoneout="):
                call(T, B)
    net, x = made("gru").eval(), torch.randn(T, B, I, dtype=F64)
    for call in (lambda d: net(x, draws=d), lambda d: net.step(x[0], draws=d[0])):
        with pytest.raises(InputError, match=r"has no effect in eval\(\)(.|\n)*net\.train\(\)"):
            call(net.draws(T, B))
    with pytest.raises(EngineError, match="with draws: it is torch's own layer"):
        elman.GRU(I, H, engine="aten")(x.float(), draws=net.draws(T, B))


@pytest.mark.parametrize(
    ("sizes", "text"),
    [((0, 4), "steps must"), ((7, 0), "batch must"), ((7.0, 4), "steps should be of type int")],
)
def test_sizes_that_are_none(sizes, text):
    """As of any size."""
    with pytest.raises(InputError, match=text):
        made("gru").draws(*sizes)
