"""Suite ``users``: each project's loop is elman's model, in values, states and every gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cases import OURS, Case, Effort
from benchmarks.measures.training import measure_steps
from benchmarks.peers.remote import enter
from benchmarks.problem import draw_problem
from benchmarks.suites.users import AIMS, LOOP, PADDED, RECURRENT, TORCHRL, UPDATE, USERS
from benchmarks.users import PROJECTS
from helpers import assert_close

LEAST = Effort(1e-9, 1, 1)
ASKED = {  # times as fast as the loop; a table of its own, so that nobody lowers it
    UPDATE: 3,
    RECURRENT: 10,
    "sb3 lstm 128,8,256": 5,
    TORCHRL: 5,
    "speechbrain ligru 500,16,512": 6,
    "ncps cfc 200,32,64": 20,
    "snntorch leaky 100,128,1000": 5,
    "snntorch rleaky 100,128,1000": 5,
    "neuralhydrology ealstm 365,256,256": 2,
    "dreamer gru 64,16,512": 5,
    "haste lstm 100,32,256": 3,
}
MODELS = [case for case in USERS.cases if case.measure.name == "users"]


def small(case: Case) -> Case:
    """The same with sizes that are no multiples of anything."""
    return replace(case, T=9, B=4, H=13, I=5, judged=0)


def test_the_suite_asks_what_was_promised():
    """Ratios to each project's loop, forward and backward, two threads, float32."""
    assert {aim.case.name: aim.case.ratio for aim in AIMS} == ASKED
    assert all(aim.case.baseline == LOOP for aim in AIMS)
    assert {(aim.case.threads, aim.case.dtype) for aim in AIMS} == {(2, "float32")}
    assert {case.kind for case in MODELS} == PROJECTS.keys()


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
def test_reference_is_the_loop(case):
    """Every way of a project and engine reference in float64, by one table of tolerances."""
    problem = draw_problem(small(case)).double()
    want = enter(LOOP, problem).results()
    assert sum(name.startswith("gradient") for name in want) >= 4
    assert all(value.abs().max() > 0 for value in want.values())
    for name in (*PROJECTS[case.kind].ways, f"{OURS}-reference"):
        if (name, case.cell) == (PADDED, "lstm"):
            continue  # of whose states it keeps one
        got = enter(name, problem).results()
        assert got.keys() == want.keys()
        for result, value in want.items():
            assert_close(got[result], value, msg=f"{name}: {result}")


def test_an_update_is_the_loops():
    """The loss of a minibatch and all gradients of the agent; then whole updates."""
    case = replace(AIMS[0].case, T=3, B=4, H=5)
    problem = draw_problem(case)
    want = enter(LOOP, problem.double()).results()
    assert len(want) == 17
    for name in (LOOP, f"{OURS}-reference"):
        got = enter(name, problem.double()).results()
        for result, value in want.items():
            assert_close(got[result], value, msg=f"{name}: {result}")
    row = measure_steps(case, LEAST)
    assert row["seconds"].keys() == {LOOP, OURS}


def test_steps_that_are_compared_are_those_the_case_names():
    """Of spiking layers the first ones, in which nothing is rounded."""
    case = next(case for case in MODELS if case.kind == "snntorch")
    assert 0 < case.judged < case.T
    result = measure_steps(replace(case, T=12, B=3, H=9, I=5), LEAST)
    assert result["compared"] == case.judged
    spikes = enter(LOOP, draw_problem(replace(case, T=case.judged, B=32))).results()["output"]
    assert 0.01 < float(spikes.mean()) < 0.99
    assert set(spikes.unique().tolist()) == {0.0, 1.0}
