"""``elman.explain`` of modules: what would run on x, without running anything on x."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import elman
from elman import cells
from elman.errors import InputError, ShapeError
from elman.nn.execute.layer import Runner
from elman.nn.inspect import explain, layers_of
from helpers import need_engine


def x_of(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape).requires_grad_(grad)


def test_layers_as_they_would_run():
    """Sizes of x, and the gradients that flow: the second layer's input needs one."""
    net = elman.GRU(3, 5, num_layers=2)
    first, second = layers_of(net, x_of(7, 2, 3))
    assert (first.name, first.steps, first.batch) == ("l0", 7, 2)
    assert first.spec.wants == frozenset("WRbc")
    assert second.spec.wants == frozenset("xWRbc")
    assert dict(second.spec.dims) == {"I": 5, "H": 5}
    assert layers_of(net, x_of(7, 2, 3, grad=True))[0].spec.wants == frozenset("xWRbc")


def test_no_gradients_without_grad_mode():
    """Under no_grad nothing is wanted."""
    with torch.no_grad():
        (layer,) = layers_of(elman.LSTM(3, 5), x_of(4, 2, 3))
    assert not layer.spec.training
    assert not layer.spec.wants


def test_frozen_weights_are_not_wanted():
    """A weight without requires_grad needs no gradient."""
    net = elman.Recurrent(elman.cells.gru, 3, 5)
    net.R_l0.requires_grad_(False)
    (layer,) = layers_of(net, x_of(4, 2, 3))
    assert layer.spec.wants == frozenset("Wbc")


@pytest.mark.parametrize(
    "shape, first, expected",
    [((7, 2, 3), False, (7, 2)), ((7, 2, 3), True, (2, 7)), ((7, 3), True, (7, 1))],
)
def test_layouts(shape, first, expected):
    """Time-major, batch_first, unbatched; both kinds of modules."""
    for net in (
        elman.GRU(3, 5, batch_first=first),
        elman.Recurrent(elman.cells.gru, 3, 5, batch_first=first),
    ):
        (layer,) = layers_of(net, x_of(*shape))
        assert (layer.steps, layer.batch) == expected


def test_the_choice_of_the_module_is_told(nothing_known):
    """What explain finds is what the module then uses, and the other way round."""
    net = elman.Recurrent(elman.cells.mgu, 3, 5)
    x = x_of(6, 2, 3)
    told = explain(net, x)
    (chosen,) = [one.name for one in told.engines if one.chosen]
    net(x)
    (choice,) = net.runners["l0"].choices.values()
    assert chosen == ":".join(part for part in (choice.engine, choice.schedule) if part)
    assert layers_of(net, x)[0].choice is choice


def test_nothing_of_the_users_is_touched(nothing_known):
    """No random number is drawn, no gradient appears, and x is as it was."""
    net = elman.GRU(3, 5, dropout=0.5, num_layers=2)
    x = x_of(6, 2, 3, grad=True)
    before, state = x.detach().clone(), torch.get_rng_state()
    explain(net, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, before)
    assert x.grad is None
    assert all(weight.grad is None for weight in net.parameters())


def test_directions():
    """A Recurrent of two directions has a layer for each."""
    net = elman.Recurrent(elman.cells.gru, 3, 5, num_layers=2, bidirectional=True)
    layers = layers_of(net, x_of(4, 2, 3))
    assert [layer.name for layer in layers] == ["l0", "l0_reverse", "l1", "l1_reverse"]
    assert ["x" in layer.spec.wants for layer in layers] == [False, False, True, True]


def test_torchs_own_layers_are_named():
    """What runs on torch's layers says why."""
    x = x_of(4, 2, 3)
    found = explain(elman.GRU(3, 5, engine="aten"), x)
    reason = "engine aten, asked for by name"
    assert f"torch's own layer, because of {reason}" in found.stages["engines"]
    assert found.tape_bytes is None
    assert found.flops is None


def test_packed_sequences_and_projections():
    """Explained by their steps and how many sequences a step has, as they are chosen for."""
    packed = pack_padded_sequence(x_of(4, 2, 3), torch.tensor([4, 2]))
    net = elman.LSTM(3, 5, proj_size=2)
    net(packed)
    (layer,) = layers_of(net, packed)
    assert (layer.steps, layer.batch) == (4, 2)
    assert "lstm_projected" in explain(net, packed).all


def test_the_engine_that_is_asked_for():
    """``using`` says who runs a module that names no engine, and a cell."""
    with elman.using(engine="reference"):
        for found in (
            explain(elman.GRU(3, 5), x_of(4, 2, 3)),
            explain(elman.cells.gru, hidden_size=5, steps=4, batch=2),
        ):
            assert "engine reference, asked for by name" in found.stages["engines"]


def test_further_inputs():
    """A cell of several inputs takes them as a tuple."""

    @elman.cell(input="x[I], m", state="h[H]", weights="W[H, I], R[H, H]")
    def masked(x, m, h, W, R):
        """Resets."""
        return elman.ops.tanh(W @ x + R @ (m * h))

    net = elman.Recurrent(masked, 3, 5)
    (layer,) = layers_of(net, (x_of(4, 2, 3), x_of(4, 2, grad=True)))
    assert layer.spec.wants == frozenset({"m", "W", "R"})


TAKEN = {  # a module, and what its forward takes beside x [6, 3, 4]
    "static": (lambda: elman.Recurrent(cells.ealstm, 4, 5, S=2), {"static": x_of(3, 2)}),
    "static with a gradient": (
        lambda: elman.Recurrent(cells.ealstm, 4, 5, S=2).requires_grad_(False),
        {"static": x_of(3, 2, grad=True)},
    ),
    "reset": (lambda: elman.GRU(4, 5, 2), {"reset": torch.zeros(6, 3)}),
    "reset to the initial": (
        lambda: elman.Recurrent(cells.mgu, 4, 5, bidirectional=True),
        {"reset": torch.zeros(6, 3), "reset_to": "initial", "state": x_of(2, 3, 5, grad=True)},
    ),
    "reset to what is learned": (
        lambda: elman.LSTM(4, 5, learn_initial=True),
        {"reset": torch.zeros(6, 3), "reset_to": "initial"},
    ),
    "lengths": (lambda: elman.GRU(4, 5, bidirectional=True), {"lengths": [6, 2, 3]}),
    "state": (
        lambda: elman.Recurrent([cells.gru, cells.lstm], 4, [5, 2]),
        {"state": [x_of(3, 5), (x_of(3, 2), x_of(3, 2))]},
    ),
    "state with a gradient": (
        lambda: elman.GRU(4, 5).requires_grad_(False),
        {"state": x_of(1, 3, 5, grad=True)},
    ),
    "states": (lambda: elman.LSTM(4, 5, 2), {"outputs": "states"}),
    "draws": (lambda: elman.LSTM(4, 5, 2, zoneout=0.1), {"lengths": [6, 2, 3]}),
    "draws once": (lambda: elman.GRU(4, 5, 2, recurrent_dropout=0.1), {"reset": torch.zeros(6, 3)}),
    "draws given": (
        lambda: elman.GRU(4, 5, 2, zoneout=0.1),
        {"draws": torch.zeros(6, 3, 2, 2, dtype=torch.int32)},
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_every_argument_of_forward(name, monkeypatch):
    """What explain says is asked for is what forward asks for, under the same name of a record; no
    random number is drawn."""
    make, call = TAKEN[name]
    net, x = make(), x_of(6, 3, 4)
    before = torch.get_rng_state()
    told = layers_of(net, x, **call)
    assert torch.equal(torch.get_rng_state(), before)
    found = [(layer.spec, layer.rules, layer.steps, layer.batch) for layer in told]
    asked = []
    choose = Runner._choose

    def noted(self, request, steps, batch):
        spec = request.spec(self.dims, self.names(request.rules), self.options)
        asked.append((spec, request.rules, steps, batch))
        return choose(self, request, steps, batch)

    monkeypatch.setattr(Runner, "_choose", noted)
    net(x, call.get("state"), **{name: call[name] for name in call if name != "state"})
    assert found == asked
    if name in ("reset", "draws"):
        assert any(rule.name in ("reset", "draws") for rule in told[0].rules)
        assert explain(net, x, **call, measure=False).tape_bytes is not None


@pytest.mark.parametrize("x", [torch.zeros(5, 2, 3), 5, "x"])
def test_a_cell_has_no_input(x):
    """It has sizes by name; the module that takes x is what is meant."""
    with pytest.raises(InputError, match="explain takes no x of a cell") as refused:
        explain(cells.mgu, x)
    assert "elman.explain(elman.Recurrent(mgu, I, H), x)" in str(refused.value)


def test_what_explain_refuses():
    """A model is not a layer, torch's layer is not elman's, and a module needs an x."""
    model = nn.Sequential(nn.Linear(3, 3), elman.GRU(3, 5))
    with pytest.raises(InputError, match=r"elman\.explain\(model\.1, x\)"):
        explain(model, x_of(4, 2, 3))
    with pytest.raises(InputError, match=r"elman\.accelerate\(model\) first"):
        explain(nn.GRU(3, 5), x_of(4, 2, 3))
    with pytest.raises(InputError, match="explain needs an example input"):
        explain(elman.GRU(3, 5))
    with pytest.raises(ShapeError, match=r"input x of gru must be \[T, B, 3\]"):
        explain(elman.GRU(3, 5), x_of(3))
    with pytest.raises(InputError, match="has static inputs: s"):
        explain(elman.Recurrent(cells.ealstm, 3, 5, S=2), x_of(4, 2, 3))
    with pytest.raises(InputError, match="has no effect without reset="):
        explain(elman.GRU(3, 5), x_of(4, 2, 3), reset_to="zeros")
    with pytest.raises(InputError, match="a module has its own hidden_size"):
        explain(elman.GRU(3, 5), x_of(4, 2, 3), hidden_size=7)


def test_a_call_changes_nothing_about_what_is_shown():
    """Values have the same names before and after the module has run."""
    need_engine("c")
    net, x = elman.Recurrent(cells.mgu, 3, 5, engine="c"), torch.randn(4, 2, 3)
    before = explain(net, x)
    net(x)
    after = explain(net, x)
    assert {k: v for k, v in after.stages.items() if k != "engines"} == {
        k: v for k, v in before.stages.items() if k != "engines"
    }
