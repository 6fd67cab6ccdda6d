"""The study of solvers: its numbers are those of the solvers, and its plots can be drawn."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.cases import Effort, KindCase
from benchmarks.studies import convergence
from benchmarks.studies.convergence import CONVERGENCE, OVER_LENGTHS

EFFORT = Effort(1e-9, 1, 1)


def study(kind: str, cell: str = "gru", T: int = 40) -> dict:
    """What is found of a small case, as the file holds it."""
    case = KindCase("a study", CONVERGENCE, cell, T, 2, 3, kind=kind)
    return json.loads(json.dumps(convergence.measure_convergence(case, EFFORT)))


def test_untrained():
    """Newton's method ends fast; errors fall to rounding; the module needs no way back."""
    result = study("untrained")
    newton, picard = (result["solvers"][name] for name in ("newton", "picard"))

    assert newton["iterations"] < 10 < picard["iterations"] <= 40
    assert len(newton["errors"]) == newton["iterations"] + 1
    assert newton["errors"][-1] < 1e-5 < newton["errors"][0]
    assert result["solved_by"] == "newton"
    assert result["returned"]["fallbacks"] == 0
    assert result["returned"]["residual"] < 1e-6
    assert [plot["title"].split(": ")[0] for plot in result["plots"]] == ["a study"] * 3


def test_chaos_is_told(monkeypatch):
    """Newton's method does not end; the module warns once, and each step of its answer is right."""
    monkeypatch.setattr(convergence, "METHODS", ("newton",))
    result = study("chaotic", "rnn", 300)

    assert result["solvers"]["newton"]["iterations"] is None
    assert result["solvers"]["newton"]["refused"]
    assert result["returned"]["residual"] < 1e-5
    if result["solved_by"] == "steps in turn":
        assert result["returned"]["fallbacks"] == 1
        assert len(result["plots"]) == 1


def test_lengths(monkeypatch):
    """One count per length, for weights as drawn and as trained."""
    monkeypatch.setattr(convergence, "LENGTHS", (5, 20))
    monkeypatch.setitem(convergence.WEIGHTS, "trained", (1.0, 2))
    result = convergence.measure_lengths(KindCase("n", OVER_LENGTHS, "gru", 1, 1, 3), EFFORT)
    assert set(result["lengths"]) == {"untrained", "trained"}
    for lengths, counts in result["lengths"].values():
        assert list(lengths) == [5, 20]
        assert all(0 < count < 10 for count in counts)


def test_training_changes_the_weights():
    """The trained study is of other weights than the untrained one."""
    case = KindCase("n", CONVERGENCE, "gru", 10, 1, 3, kind="untrained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(convergence.WEIGHTS, "trained", (1.0, 2))
        before, after = convergence.draw_weights(case), convergence.draw_weights(case, "trained")
    assert not torch.equal(before["R"], after["R"])
