"""Suite cmu: all contestants compute one training step, and claims are judged from rows alone."""

from __future__ import annotations

import pytest

from benchmarks.cases import Case, Effort
from benchmarks.peers.remote import enter
from benchmarks.problem import draw_problem
from benchmarks.suites import find_suite
from benchmarks.workloads.fitting import COMBINATIONS, FIT, FITTERS, SWITCHES
from helpers import assert_close

LEAST = Effort(1e-9, 1, 1)
SMALL = Case("small 6,5,19", FIT, "tanh_readout", 6, 5, 19, baseline="torch")
CMU = find_suite("cmu")


SLOW = {"compiled": [pytest.mark.slow]}  # torch's compiler takes a while to begin


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")  # dynamo's
@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW.get(n, ())) for n in FITTERS])
def test_contestants_agree(name):
    """The same output, last state and gradients as autograd's in float64, or a reason why not."""
    want = enter("torch", draw_problem(SMALL).double()).results()
    contestant = enter(name, draw_problem(SMALL))
    if isinstance(contestant, str):
        assert "not installed" in contestant
        pytest.skip(contestant)
    for _ in range(2):  # a second run finds what the first one left
        got = contestant.results()
        assert got.keys() == want.keys()
        for result, value in want.items():
            assert_close(got[result], value, msg=f"{name}: {result}")
    contestant.close()


def test_combinations_are_all_there():
    """Each set of switches once; the one with all is engine c, the one with none is serial."""
    assert {frozenset(out) for out in COMBINATIONS.values()} == {
        frozenset(out) for out in ((), *[(s,) for s in SWITCHES], SWITCHES)
    } | {frozenset(SWITCHES) - {s} for s in SWITCHES}
    assert COMBINATIONS["serial"] == SWITCHES
    assert COMBINATIONS["elman-c"] == ()
    assert COMBINATIONS["simd"] == ("tiling", "threads")


def test_work_is_counted():
    """Forward three products, backward five: nobody asks for the gradient of x."""
    problem, T, B, H = draw_problem(SMALL), 6, 5, 19
    assert problem.flop == 2 * 8 * H * H * T * B
