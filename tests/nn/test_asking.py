"""Which engine runs a module: argument, using, environment, in this order; records and pinning."""

from __future__ import annotations

import json
from importlib import import_module

import pytest
import torch

import elman
import elman.nn
from elman import cells
from elman.errors import EngineError
from helpers import OwnBackwardEngine, forced, need_engine, stand_in
from scripts import begin, finished

USING = import_module("elman.nn.engine_choice")


def ran(net) -> set[str]:
    """The engines that have run a module's layers."""
    return {choice.engine for runner in net.runners.values() for choice in runner.choices.values()}


def test_precedence(monkeypatch):
    """The module's argument > using > ELMAN_ENGINE; ELMAN_FORCE_ENGINE before all, of calls that
    came before too."""
    x = torch.zeros(2, 2, 3)

    def engine_of(argument: str) -> str:
        net = elman.Recurrent(cells.gru, 3, 4, engine=argument)
        with torch.no_grad():
            net(x), net(x), net(x)  # checked, kept, and by the cache of calls
        (engine,) = ran(net)
        return engine

    monkeypatch.setattr(USING, "_environment", "aten")
    assert engine_of("auto") == "aten"
    assert engine_of("reference") == "reference"
    with elman.using(engine="reference"):
        assert engine_of("auto") == "reference"
        assert engine_of("aten") == "aten"
        with elman.using(engine="aten"):
            assert engine_of("auto") == "aten"
        assert engine_of("auto") == "reference"
        with forced("aten"):
            assert engine_of("auto") == engine_of("reference") == "aten"
    net = elman.GRU(3, 4, engine="aten")
    for _ in range(3):
        net(x)
    with forced("reference"):
        net(x)
    assert "reference" in ran(net)


def test_explained_in_the_same_order(monkeypatch):
    """explain names the engine that a call would run on."""
    x = torch.zeros(2, 2, 3)

    def engines(argument: str) -> str:
        return elman.explain(elman.GRU(3, 4, engine=argument), x).stages["engines"]

    monkeypatch.setattr(USING, "_environment", "reference")
    assert "engine reference, asked for by name" in engines("auto")
    assert "engine aten, asked for by name" in engines("aten")
    with elman.using(engine="aten"):
        assert "engine aten, asked for by name" in engines("auto")
        assert "engine reference, asked for by name" in engines("reference")
    with forced("reference"):
        assert "engine reference, asked for by name" in engines("aten")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled_in_the_same_order(monkeypatch):
    """A compiled call runs on the engine that the eager one would."""
    x = torch.zeros(2, 2, 3)

    def engine_of(kind: str, argument: str) -> str:
        torch._dynamo.reset()
        sizes = (3, 4) if kind == "GRU" else (cells.mgu, 3, 4)
        net = getattr(elman, kind)(*sizes, engine=argument)
        torch.compile(net, backend="eager", fullgraph=True)(x)
        (engine,) = ran(net)
        return engine

    need_engine("c")
    monkeypatch.setattr(USING, "_environment", "reference")
    for kind in ("GRU", "Recurrent"):
        assert engine_of(kind, "auto") == "reference"
        assert engine_of(kind, "c") == "c"
    with elman.using(engine="c"):
        assert engine_of("GRU", "auto") == "c"
        assert engine_of("GRU", "reference") == "reference"
        with forced("reference"):
            assert engine_of("GRU", "c") == "reference"


def test_unknown_names(monkeypatch):
    """Of a block, of either variable: what is wrong, where, and what there is."""
    known = "there are auto, c, triton, aten, deer, scan-backward, reference"
    net, x = elman.GRU(3, 4), torch.zeros(2, 2, 3)
    with (
        pytest.raises(EngineError, match=f"^no engine 'fast'; {known}"),
        elman.using(engine="fast"),
    ):
        pass
    for name, variable in (("_environment", "ELMAN_ENGINE"), ("_forced", "ELMAN_FORCE_ENGINE")):
        with monkeypatch.context() as patch:
            patch.setattr(USING, name, "cudnn")
            with pytest.raises(EngineError, match=f"^{variable}: no engine 'cudnn'; {known}"):
                net(x)


@pytest.mark.slow
def test_variables_are_read_at_import():
    """Of the process's environment."""
    environment = {"ELMAN_ENGINE": "aten", "ELMAN_FORCE_ENGINE": "reference"}
    for names in (["ELMAN_ENGINE"], ["ELMAN_ENGINE", "ELMAN_FORCE_ENGINE"]):
        code = "import elman; print(elman.explain(elman.GRU(3, 4), T).stages['engines'])".replace(
            "T", "__import__('torch').zeros(2, 2, 3)"
        )
        text = finished(begin("-c", code, **{name: environment[name] for name in names}))
        assert f"engine {environment[names[-1]]}, asked for by name" in text


def test_choices_are_recorded_and_pinned(monkeypatch):
    """A record is JSON; pinned, it decides whatever would be benchmarked; what changed is told."""
    stand_in(monkeypatch, OwnBackwardEngine(("wide", "narrow")))
    x = torch.randn(4, 2, 3)
    net = elman.Recurrent(cells.mgu, 3, 4, 2, engine="auto")
    net(x)
    net.eval()
    with torch.no_grad():
        net(x)
    record = json.loads(json.dumps(elman.nn.choices(net)))

    assert set(record) == {"l0", "l1"}
    shown = sorted(record["l0"])
    assert shown == ["float32 cpu T<=4 B<=2 eval", "float32 cpu T<=4 B<=2 train Rf Rn Wf Wn bf bn"]
    for own in record.values():
        for entry in own.values():
            assert entry["engine"] == "c"
            entry["schedule"] = "narrow"
    other = elman.Recurrent(cells.mgu, 3, 4, 2)
    assert elman.nn.pin(other, record) == []
    other(x)
    choice = other.runners["l0"].choices[shown[1]]
    assert (choice.engine, choice.schedule, choice.why) == ("c", "narrow", "pinned")
    with elman.using(engine="reference"):
        other(x)
    assert elman.nn.choices(other)["l0"][shown[0]]["engine"] == "c"  # kept, though it did not run

    beside = shown[1].replace("cpu", "cpu engine=reference")
    own = elman.nn.choices(other)["l0"]
    assert {name: entry["engine"] for name, entry in own.items()} == {
        shown[0]: "c",
        shown[1]: "c",
        beside: "reference",
    }
    again = elman.Recurrent(cells.mgu, 3, 4, 2)
    assert elman.nn.pin(again, elman.nn.choices(other)) == []
    again(x)
    with elman.using(engine="reference"):
        again(x)
    assert {
        name: entry.why for name, entry in again.runners["l0"].choices.items()
    } == dict.fromkeys((*shown, beside), "pinned")

    record["l0"][beside] = dict(record["l0"][shown[1]])
    record["l0"][shown[1]]["plan"] = "4567"
    record["l1"] = {"nonsense": {"engine": "c", "schedule": ""}, **record["l1"]}
    record["l7"] = {}
    reasons = elman.nn.pin(other, record)
    assert reasons[0] == f"l0: {shown[1]}: plan of engine c is not what it was"
    assert reasons[1] == f"l0: {beside}: engine c was not asked for"
    assert reasons[2].startswith("l1: nonsense: ")
    assert reasons[3:] == ["l7: no such layer"]


def test_names_of_layers_inside_a_model():
    """Records of drop-ins and Recurrents carry the module's path."""
    model = torch.nn.ModuleDict(
        {"a": elman.GRU(3, 4, 2, engine="reference"), "b": elman.Recurrent(cells.gru, 3, 4)}
    )
    model["a"](torch.zeros(2, 2, 3))
    assert set(elman.nn.choices(model)) == {"a.l0", "a.l1", "b.l0"}
