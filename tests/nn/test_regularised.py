"""Zoneout, recurrent dropout and dropped weights as options, against formulas written out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import elman
import elman.nn
from elman import cells, compiler, ops
from elman.errors import EngineError, InputError
from elman.frontend.cell import cell
from elman.frontend.changes import ClippedGradient, RecurrentDropout
from helpers import assert_close

F64 = torch.float64
P = 0.4


@cell(input="x[I]", state="h[H], c[H]", weights="W[4H, I], R[4H, H], b[4H]")
def dropped(x, h, c, W, R, b):
    """LSTM whose recurrent product reads h with units dropped, and nothing else does."""
    seen = ops.dropout(h, P, per="sequence")
    return cells.lstm(x, seen, c, W, R, b)


def results(net: Any, x: Tensor, **more: Any) -> list[Tensor]:
    """Output, last states and all gradients of a call after ``manual_seed``."""
    torch.manual_seed(5)
    x = x.detach().requires_grad_()
    out, last = net(x, **more)
    ends = last if isinstance(last, tuple) else (last,)
    loss = out.sin().sum() + sum(end.cos().sum() for end in ends)
    return [out, *ends, *torch.autograd.grad(loss, [x, *net.parameters()])]


def same(got: list[Tensor], want: list[Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("options", [{"zoneout": 0.3}, {"recurrent_dropout": 0.3}])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_drop_ins(kind, options):
    """torch's classes take them; what they are in evaluation, and that torch's engine cannot train
    so."""
    torch.manual_seed(0)
    net = getattr(elman, kind)(5, 8, dtype=F64, **options)
    theirs = getattr(torch.nn, kind)(5, 8, dtype=F64)
    theirs.load_state_dict(net.state_dict())
    x = torch.randn(6, 3, 5, dtype=F64)
    trained = results(net, x)
    same(results(net, x), trained)
    assert not torch.allclose(trained[0], theirs(x)[0])
    net.engine = "reference"
    same(results(net, x), trained)
    net.eval()
    assert torch.allclose(net(x)[0], theirs(x)[0]) == ("recurrent_dropout" in options)
    net.train().engine = "aten"
    with pytest.raises(EngineError, match="torch's own layer has another formula"):
        net(x)


def test_dropped_weights():
    """Whole weights, for a call: what multiplies a state loses some, all else stays."""
    torch.manual_seed(0)
    net = elman.GRU(5, 32, 2, weight_dropout=0.5, dtype=F64, engine="reference")
    x = torch.randn(6, 3, 5, dtype=F64)
    torch.manual_seed(3)
    got, _ = net(x)
    plain = copy.deepcopy(net)
    plain.weight_dropout = 0.0
    torch.manual_seed(3)
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            if name.startswith("weight_hh"):
                weight.copy_(torch.dropout(weight, 0.5, True))
    assert_close(got, plain(x)[0])
    loss = got.sum()
    loss.backward()
    grad = net.weight_hh_l0.grad
    assert grad is not None
    assert 0.4 < (grad == 0).double().mean() < 0.6
    assert_close(net.eval()(x)[0], elman_eval(net, x))


def elman_eval(net: Any, x: Tensor) -> Tensor:
    """What torch's GRU makes of a module's weights."""
    theirs = torch.nn.GRU(5, 32, 2, dtype=F64)
    theirs.load_state_dict(net.state_dict())
    return theirs(x)[0]


def test_clipping_holds_what_all_readers_send_back():
    """Dropped in a product, read elsewhere as it is: the sum of both cotangents is clipped once."""

    @cell(input="x[H]", state="h[H]", weights="R[H, H]")
    def both(x, h, R):
        return R @ h + 0.5 * h + x

    made = both.with_changes(RecurrentDropout(0.5), ClippedGradient(0.1))
    graph = compiler.graph_of(made, compiler.training_rules(made))
    clips = [value for value in graph.walk() if value.op == "clip_gradient"]
    assert len(clips) == 1


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"zoneout": 1.5}, "zoneout must be in"),
    ({"zoneout": {"q": 0.1}}, "has no state 'q'"),
    ({"recurrent_dropout": -0.1}, "recurrent_dropout must be in"),
    ({"recurrent_dropout": 0.1, "recurrent_dropout_per": "batch"}, "recurrent_dropout_per must be"),
    ({"weight_dropout": 2}, "weight_dropout must be in"),
]


@pytest.mark.parametrize(("options", "told"), MISTAKES, ids=str)
def test_mistakes(options, told):
    """One problem, and what to write."""
    for make in (lambda: elman.GRU(3, 4, **options), lambda: recurrent(cells.gru, **options)):
        with pytest.raises(InputError, match=told):
            make()


def recurrent(of: Any, **options: Any) -> Any:
    return elman.Recurrent(of, 3, 4, **options)


def test_a_cell_without_a_recurrent_product():
    """There is nothing to be dropped: told with what there is instead."""
    with pytest.raises(InputError, match="multiplies no state with a weight matrix"):
        recurrent(cells.indrnn, recurrent_dropout=0.1)
    recurrent(cells.indrnn, zoneout=0.1)
