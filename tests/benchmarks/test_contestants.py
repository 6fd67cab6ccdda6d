"""Contestants compute the same thing; one that does not is never timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks import contestants
from benchmarks.cases import Case, Effort, KindCase
from benchmarks.contestants import BUILT_IN, FORWARD, TRAIN
from benchmarks.measures import training
from benchmarks.measures.training import measure_steps
from benchmarks.peers.loops import TUNED
from benchmarks.peers.remote import enter
from benchmarks.peers.steps import STEPS
from benchmarks.problem import Contestant, draw_problem
from benchmarks.suites import find_suite
from benchmarks.workloads.scans import SCAN
from elman.errors import EngineError, VerifyError
from elman.nn import using
from helpers import assert_close

LEAST = Effort(1e-9, 1, 1)
SMALL = Case("small", TRAIN, "gru", 5, 2, 8, contestants=("torch", "elman-aten"), baseline="torch")


@pytest.mark.parametrize(
    "name, cell, layers",
    [
        *[("loop", cell, 1) for cell in ("lstm_layernorm", "lstm_peephole", "lem", "leaky_memory")],
        *[("tuned-loop", cell, 1) for cell in TUNED],
        *[("loop", cell, layers) for cell in STEPS for layers in (1, 2)],
    ],
)
def test_loop_is_the_cell(name, cell, layers):
    """A loop over torch ops gives output, last states and gradients of the cell's formula."""
    case = replace(SMALL, cell=cell, T=7, contestants=(name, "elman"), baseline=name, layers=layers)
    problem = draw_problem(case).double()
    loop = enter(name, problem).results()
    with using(engine="reference"):
        fused = enter("elman", problem).results()

    assert loop.keys() == fused.keys()
    for result, value in loop.items():
        assert_close(value, fused[result], msg=result)


@pytest.mark.parametrize("name", ["elman", "jax", "torch"])
@pytest.mark.parametrize("n", [0, 3])
def test_scans_are_the_loop(name, n):
    """A linear recurrence by each contestant, of factors or matrices: values and gradients."""
    case = replace(SMALL, measure=SCAN, cell="mingru", T=37, I=n, contestants=("loop", name))
    problem = draw_problem(case)
    contestant = enter(name, problem)
    if isinstance(contestant, str):
        assert "not installed" in contestant
        pytest.skip(contestant)
    want, got = enter("loop", problem.double()).results(), contestant.results()
    contestant.close()
    assert got.keys() == want.keys()
    for result, value in want.items():
        assert_close(got[result], value, msg=result)


LAYERS: dict[Any, Any] = {  # one of two runs at once will do: it starts four processes
    case.kind if case.kind == "beside" else (case.cell, case.kind): case
    for case in (*find_suite("layers").cases, *find_suite("streams").cases)
    if isinstance(case, KindCase)
}


@pytest.mark.parametrize("case", LAYERS.values(), ids=lambda case: case.name)
def test_layers_are_torchs(case):
    """What each kind of a layer's work gives: the same by every contestant."""
    small = replace(case, T=min(case.T, 7), B=min(case.B, 3), H=5)
    want = enter("torch", draw_problem(small).double()).results()
    gradients = any(name.startswith("gradient") for name in want)
    assert gradients == (case.kind != "acting")
    for name in small.contestants:
        contestant = enter(name, draw_problem(small))
        got = contestant.results()
        contestant.close()
        assert got.keys() == want.keys()
        for result, value in want.items():
            assert_close(got[result], value, msg=f"{name}: {result}")


def test_engines_of_a_suite_are_asked_for_by_name():
    """Each runs on the engine of its name, and they agree."""
    names = ("elman-c", "elman-deer", "elman-scan-backward")
    case = replace(SMALL, cell="paragru", contestants=names, baseline="elman-deer")
    row = measure_steps(case, LEAST)
    for name in row["seconds"]:
        (layer,) = row["facts"][name].values()
        assert {record["engine"] for record in layer.values()} == {name.removeprefix("elman-")}


_absent: dict[str, str] = {}  # peers that said so; each asks in a process of its own


@pytest.mark.parametrize("measure", [TRAIN, FORWARD], ids=lambda way: way.name)
@pytest.mark.parametrize("cell", BUILT_IN)
@pytest.mark.parametrize("name", ["jax", "onnxruntime"])
def test_peer_is_the_cell(name, cell, measure):
    """A peer that is installed computes what torch does; one that is not, or cannot, says so."""
    if name in _absent:
        pytest.skip(_absent[name])
    case = replace(SMALL, cell=cell, measure=measure, contestants=(name,))
    problem = draw_problem(case)
    peer = enter(name, problem)
    if isinstance(peer, str):
        assert "not installed" in peer or (name, measure) == ("onnxruntime", TRAIN)
        if "not installed" in peer:
            _absent[name] = peer
        return
    torchs, results, facts = enter("torch", problem).results(), peer.results(), peer.facts()
    assert peer.sample(3) > 0.0
    peer.close()
    assert results.keys() == torchs.keys()
    for result, value in results.items():
        assert_close(value, torchs[result], msg=result)
    assert facts["version"]


def test_same_numbers_for_all():
    """Problems are drawn from the seed, apart from the global generator; gains are tamed."""
    torch.manual_seed(5)
    state = torch.get_rng_state()
    item, two = draw_problem(SMALL), draw_problem(SMALL)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(item.x, two.x)
    assert item.weights.keys() == two.weights.keys()
    assert all(torch.equal(item.weights[name], two.weights[name]) for name in item.weights)

    gains = draw_problem(replace(SMALL, cell="lstm_layernorm")).weights
    assert gains["gx_l0"].unique().tolist() == [0.5]


def test_work_is_counted():
    """Products only: 2·G·H·(I+H)·T·B forward, three times that in training."""
    forward = replace(SMALL, measure=FORWARD, I=3)
    assert draw_problem(forward).flop == 2 * 3 * 8 * (3 + 8) * 5 * 2
    assert draw_problem(replace(SMALL, I=3)).flop == 3 * draw_problem(forward).flop


def test_wrong_contestant_is_not_timed(monkeypatch):
    """A contestant whose results differ stops the case, by name, before anything is timed."""

    def wrong(problem):
        right = enter("torch", problem)
        results = lambda: {k: v * 1.01 for k, v in right.results().items()}  # noqa: E731
        return Contestant(right.run, results, right.wants, right.facts)

    monkeypatch.setitem(contestants.CONTESTANTS, "elman", wrong)
    monkeypatch.setattr(training, "time_side_by_side", lambda *_: pytest.fail("timed"))
    with pytest.raises(VerifyError, match=r"small: elman disagrees with torch: .* is off by"):
        measure_steps(replace(SMALL, contestants=("torch", "elman")), LEAST)


def test_missing_result_is_told(monkeypatch):
    """A contestant that leaves a gradient out does less work: no comparison."""

    def lazy(problem):
        right = enter("torch", problem)
        results = lambda: {k: v for k, v in right.results().items() if k != "gradient of x"}  # noqa: E731
        return Contestant(right.run, results, right.wants, right.facts)

    monkeypatch.setitem(contestants.CONTESTANTS, "elman", lazy)
    with pytest.raises(VerifyError, match="do not both have gradient of x"):
        measure_steps(replace(SMALL, contestants=("torch", "elman")), LEAST)


def test_absent_contestant_has_its_reason():
    """Who cannot run a case is absent with a reason, and the others are timed."""
    result = measure_steps(replace(SMALL, contestants=("torch", "tuned-loop")), LEAST)
    assert result["absent"] == {"tuned-loop": "no loop is written for gru"}
    assert result["seconds"].keys() == {"torch"}

    with pytest.raises(EngineError, match=r"torch\.nn has no mgu"):
        measure_steps(replace(SMALL, cell="mgu"), LEAST)
