"""Who is asked: using before the environment before the module; records, and pinning them."""

from __future__ import annotations

import json

import pytest
import torch

import elman
import elman.nn
from elman import cells
from elman.errors import EngineError
from helpers import OwnBackwardEngine, stand_in


def ran(net) -> set[str]:
    """The engines that have run a module's layers."""
    return {choice.engine for runner in net.runners.values() for choice in runner.choices.values()}


def test_precedence(monkeypatch):
    """using > ELMAN_ENGINE > the module's own."""
    x = torch.zeros(2, 2, 3)
    net = elman.Recurrent(cells.gru, 3, 4, engine="aten")
    net(x)
    assert ran(net) == {"aten"}
    monkeypatch.setenv("ELMAN_ENGINE", "reference")
    net = elman.Recurrent(cells.gru, 3, 4, engine="aten")
    net(x)
    assert ran(net) == {"reference"}
    with elman.using(engine="aten"):
        net = elman.Recurrent(cells.gru, 3, 4)
        net(x)
        with elman.using(engine="reference"):
            pass
        net(x)
    assert ran(net) == {"aten"}
    monkeypatch.setenv("ELMAN_ENGINE", "cudnn")
    with pytest.raises(
        EngineError,
        match="no engine 'cudnn'; there are auto, c, triton, aten, deer, scan-backward, reference",
    ):
        net(x)
    with pytest.raises(EngineError, match="no engine 'fast'"), elman.using(engine="fast"):
        pass


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
    assert shown == [
        "float32 cpu T<=4 B<=2 eval",
        "float32 cpu T<=4 B<=2 train Rf Rn Wf Wn bf bn",
    ]
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
