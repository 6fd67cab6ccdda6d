"""elman.RNN, GRU and LSTM against torch.nn's: weights, errors, swapping; results are those of
``nn/test_around.py`` and ``conformance/``."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves

import elman
import elman.nn
from elman import PlanOptions, cells
from elman.engines import registry
from elman.errors import EngineError, InputError

KINDS = ("RNN", "GRU", "LSTM")


def pair(kind, *args, engine="auto", seed=0, **options):
    """torch's module and elman's with the same arguments and the same seed."""
    torch.manual_seed(seed)
    theirs = getattr(nn, kind)(*args, **options)
    torch.manual_seed(seed)
    ours = getattr(elman, kind)(*args, engine=engine, **options)
    return theirs, ours


def states_for(kind, lead, batch, size, dtype):
    """Random initial states as torch takes them."""
    shape = (lead, size) if batch is None else (lead, batch, size)
    made = [torch.randn(shape, dtype=dtype) * 0.5 for _ in range(2 if kind == "LSTM" else 1)]
    return tuple(made) if kind == "LSTM" else made[0]


@pytest.mark.parametrize("kind", KINDS)
def test_same_draws_and_weights(kind):
    """The generator ends where torch's does, and ``state_dict`` goes both ways."""
    torch.manual_seed(5)
    theirs = getattr(nn, kind)(5, 7, 2)
    after = torch.get_rng_state()
    torch.manual_seed(5)
    ours = getattr(elman, kind)(5, 7, 2)

    assert torch.equal(torch.get_rng_state(), after)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    other = getattr(nn, kind)(5, 7, 2)
    ours.load_state_dict(other.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(6, 2, 5)
    for a, b, c in zip(*(tree_leaves(module(x)) for module in (ours, theirs, other))):
        torch.testing.assert_close(a, b)
        assert torch.equal(b, c)


BAD = {
    "rank": lambda kind: (torch.zeros(2, 3, 4, 5), None),
    "size": lambda kind: (torch.zeros(2, 3, 6), None),
    "dtype": lambda kind: (torch.zeros(2, 3, 5, dtype=torch.float64), None),
    "no steps": lambda kind: (torch.zeros(0, 3, 5), None),
    "batch of states": lambda kind: (
        torch.zeros(2, 3, 5),
        states_for(kind, 1, 4, 7, torch.float32),
    ),
    "size of states": lambda kind: (torch.zeros(2, 3, 5), states_for(kind, 1, 3, 8, torch.float32)),
    "layers of states": lambda kind: (
        torch.zeros(2, 3, 5),
        states_for(kind, 2, 3, 7, torch.float32),
    ),
    "unbatched states": lambda kind: (
        torch.zeros(2, 3, 5),
        states_for(kind, 1, None, 7, torch.float32),
    ),
    "batched states": lambda kind: (torch.zeros(2, 5), states_for(kind, 1, 3, 7, torch.float32)),
    "dtype of states": lambda kind: (
        torch.zeros(2, 3, 5),
        states_for(kind, 1, 3, 7, torch.float64),
    ),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("kind", KINDS)
def test_same_errors(kind, case):
    """What torch refuses is refused in torch's words, by torch's class."""
    theirs, ours = pair(kind, 5, 7)
    x, hx = BAD[case](kind)
    with pytest.raises(Exception) as want:  # torch decides which
        theirs(x, hx)
    with pytest.raises(type(want.value)) as got:
        ours(x, hx)

    assert str(got.value) == str(want.value)


@pytest.mark.parametrize("kind", KINDS)
def test_same_constructor_errors(kind):
    """So are bad constructor arguments; an unknown engine is told with those that exist."""
    for args, options in (((0, 3), {}), ((3, 4), {"dropout": 2.0}), ((3, 4), {"bias": 1})):
        with pytest.raises((ValueError, TypeError)) as want:
            getattr(nn, kind)(*args, **options)
        with pytest.raises(type(want.value)) as got:
            getattr(elman, kind)(*args, **options)
        assert str(got.value) == str(want.value)
    with pytest.raises(
        EngineError,
        match="no engine 'cudnn'; there are auto, c, triton, aten, deer, scan-backward, reference",
    ):
        getattr(elman, kind)(3, 4, engine="cudnn")


def test_what_comes_later_runs_on_torch():
    """Autocast for float16: torch's forward. bfloat16 agrees with it; no engine has it by name."""
    x = torch.randn(6, 3, 5)
    theirs, ours = pair("LSTM", 5, 7, dtype=torch.bfloat16)
    for given in (x.bfloat16(), pack_padded_sequence(x.bfloat16(), [6, 4, 2])):
        want, got = tree_leaves(theirs(given)[1]), tree_leaves(ours(given)[1])
        for mine, other in zip(got, want, strict=True):
            torch.testing.assert_close(mine, other, rtol=2e-2, atol=2e-2)
        with (
            elman.using(engine="c"),
            pytest.raises(EngineError, match="engine c cannot run this LSTM: "),
        ):
            ours(given)
    with torch.autocast("cpu", torch.float16):
        theirs, ours = pair("GRU", 5, 7)
        assert torch.equal(ours(x)[0], theirs(x)[0])
    assert elman.nn.report(ours) == {"": "elman.GRU, engine auto"}


@pytest.mark.parametrize("kind", KINDS)
def test_on_the_meta_device(kind):
    """Shapes alone, on a device that autocast does not know; whether or not it is on elsewhere."""
    ours, x = getattr(elman, kind)(3, 4, device="meta"), torch.empty(2, 5, 3, device="meta")
    assert ours(x)[0].shape == (2, 5, 4)
    with torch.autocast("cpu"):
        assert ours(x)[0].shape == (2, 5, 4)


def test_a_state_can_be_detached_in_place():
    """Truncated BPTT as people write it: the state is no view."""
    ours = elman.GRU(3, 4)
    out, h = ours(torch.randn(2, 2, 3))
    h.detach_()
    out, h = ours(torch.randn(2, 2, 3), h)

    assert out.requires_grad


class Model(nn.Module):
    """Recurrent layers in every place where accelerate may meet one."""

    def __init__(self):
        super().__init__()
        self.first = nn.GRU(3, 4)
        self.shared = self.first
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4))
        self.listed = [nn.RNN(4, 4)]  # unregistered, on purpose
        self.own = type("MyGRU", (nn.GRU,), {})(4, 4)
        self.masked = parametrize.register_parametrization(
            nn.RNN(4, 4), "weight_hh_l0", nn.Identity()
        )

    def forward(self, x):
        out, _ = self.first(x)
        out, _ = self.inner(out)
        out, _ = self.own(out)
        return self.masked(out)[0]


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_single_steps_are_told(name):
    """A loop over torch's cell goes on as it was."""
    model = nn.ModuleDict({"torchs": getattr(nn, f"{name}Cell")(3, 4)})
    told = f"torch.nn.{name}Cell, left alone: elman.{name} takes all steps at once"
    with pytest.warns(UserWarning, match=f"replaced nothing in ModuleDict: torchs: {told}"):
        assert elman.nn.report(elman.accelerate(model)) == {"torchs": told}


def test_accelerate_and_restore():
    """Classes are swapped in place; parameters, hooks, mode and shared modules stay."""
    model = Model().eval()
    calls = []
    model.first.register_forward_hook(lambda *_: calls.append(1))
    parameters = dict(model.named_parameters())
    x = torch.randn(5, 2, 3)
    want = model(x)

    assert elman.accelerate(model) is model
    assert type(model.first) is elman.GRU
    assert model.first is model.shared
    assert type(model.inner[1]) is elman.LSTM
    assert not model.first.training
    assert all(parameters[name] is value for name, value in model.named_parameters())
    torch.testing.assert_close(model(x), want)
    assert len(calls) == 2
    report = elman.nn.report(model)
    chosen = {name: text.rpartition(": ") for name, text in report.items()}
    assert {choice[2] for choice in chosen.values()} <= {*registry.names()}
    assert report | {name: choice[0] for name, choice in chosen.items()} == {
        "first": "elman.GRU, engine auto",
        "inner.1": "elman.LSTM, engine auto",
        "own": "MyGRU, derived from elman.GRU, engine auto",
        "masked": "ParametrizedRNN, derived from elman.RNN, engine auto",
    }
    made = elman.GRU(3, 4)
    model.made = made

    assert elman.restore(model) is model
    assert type(model.first) is nn.GRU
    assert type(model.inner[1]) is nn.LSTM
    assert type(model.made) is elman.GRU
    assert torch.equal(model(x), want)
    assert set(vars(model.first)) == set(vars(nn.GRU(3, 4)))


def test_accelerate_a_layer_itself(caplog):
    """A layer that is the whole model; what was done is logged."""
    layer = nn.LSTM(3, 4, 2)
    with caplog.at_level("INFO", logger="elman"):
        assert elman.accelerate(layer) is layer
    assert type(layer) is elman.LSTM
    assert caplog.messages == ["LSTM: elman.LSTM, engine auto"]
    assert type(elman.restore(layer)) is nn.LSTM


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_have_torchs_names(kind):
    """Those of forward; every argument of the constructor is one that help() shows."""
    net = getattr(elman, kind)(4, 5, bias=False)
    x = torch.randn(2, 3, 4)
    want = tree_leaves(net(x))
    state = tuple(want[-2:]) if "LSTM" in kind else want[-1]
    assert all(torch.equal(a, b) for a, b in zip(tree_leaves(net(input=x)), want))
    theirs = tree_leaves(net(input=x, hx=state))
    assert all(torch.equal(a, b) for a, b in zip(tree_leaves(net(x, state)), theirs))
    with pytest.raises(TypeError, match="multiple values for argument 'input'"):
        net(x, input=x)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'input'"):
        net()
    with pytest.raises(TypeError, match="unexpected keyword argument 'state'"):
        net(x, state=state)
    shown = inspect.signature(type(net).__init__).parameters
    assert {"input_size", "hidden_size", "bias", "device", "dtype"} <= shown.keys()
    assert not any(p.kind is p.VAR_POSITIONAL for p in shown.values())


def test_options_of_every_module():
    """plan, residual and output_size are on all; torch's own words for what does not exist."""
    net = elman.LSTM(5, 5, 2, plan=PlanOptions("recompute"), residual=True, bidirectional=False)
    assert net.output_size == 5
    assert elman.GRU(3, 5, bidirectional=True).output_size == 10
    assert elman.LSTM(3, 5, proj_size=2).output_size == 2
    assert "plan=PlanOptions(tape='recompute'), residual=True" in repr(net)
    same = elman.Recurrent(cells.lstm, 5, 5, 2, residual=True, plan=net.plan, dtype=torch.float64)
    net = net.double()
    with torch.no_grad():
        for k in range(2):
            getattr(same, f"W_l{k}").copy_(getattr(net, f"weight_ih_l{k}"))
            getattr(same, f"R_l{k}").copy_(getattr(net, f"weight_hh_l{k}"))
            bias = getattr(net, f"bias_ih_l{k}") + getattr(net, f"bias_hh_l{k}")
            getattr(same, f"b_l{k}").copy_(bias)
    x = torch.randn(4, 2, 5, dtype=torch.float64)
    torch.testing.assert_close(net(x)[0], same(x)[0])
    with pytest.raises(ValueError, match="proj_size argument is only supported for LSTM"):
        elman.GRU(4, 5, proj_size=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'tapes'"):
        elman.GRU(4, 5, tapes="save")
    with pytest.raises(InputError, match='tape must be "save", "auto" or "recompute"'):
        PlanOptions("some")
    with pytest.raises(InputError, match="no optimization 'loops' to leave out"):
        PlanOptions(without=["loops"])
    with pytest.raises(EngineError, match="cannot leave out merging"):
        elman.GRU(4, 5, engine="aten", plan=PlanOptions(without="merging"))(torch.zeros(3, 2, 4))


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_options_are_in_the_signature(kind):
    """``help`` and editors show torch's arguments, then each option; a subclass shows its own."""
    shown = inspect.signature(getattr(elman, kind)).parameters
    options = [name for name, p in shown.items() if p.kind is p.KEYWORD_ONLY]
    assert options == list(elman.nn.modules.torch_layers.Options.__annotations__)
    assert {name: shown[name].default for name in options} == {
        name: getattr(elman.nn.modules.sequence.SequenceModule, name) for name in options
    }
    names = list(inspect.signature(elman.Recurrent).parameters)
    assert {*options} <= {*names}

    class Own(getattr(elman, kind)):
        def __init__(self, size):
            super().__init__(size, size)

    assert list(inspect.signature(Own).parameters) == ["size"]


@pytest.mark.parametrize(
    "option, told",
    [
        ({"zoneout": 0.1}, "zoneout=0.1"),
        ({"clip_gradient": 1.0}, "clip_gradient=1.0"),
        ({"heads": 2}, "2 heads"),
        ({"recurrent_dropout": 0.5}, "recurrent_dropout=0.5"),
    ],
)
def test_formulas_that_torch_has_not(option, told):
    """Engine aten refuses an option by its name."""
    net = elman.LSTM(4, 6, engine="aten", **option)
    text = f"engine aten cannot run this LSTM with {told}: torch's own layer has another formula"
    with pytest.raises(EngineError, match=text):
        net(torch.ones(3, 2, 4))
