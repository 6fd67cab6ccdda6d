"""Suite cmu: all contestants compute one training step, and claims are judged from rows alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench_rows import steady
from benchmarks.cases import Case, Effort
from benchmarks.claims import Rows, judged
from benchmarks.measures.phases import PHASES, measure_phases
from benchmarks.measures.training import measure_steps
from benchmarks.peers.remote import enter
from benchmarks.problem import draw_problem
from benchmarks.suites import find_suite
from benchmarks.suites.cmu import CLAIMS, COMBINED, LENGTHS, PEERS
from benchmarks.workloads.fitting import COMBINATIONS, FIT, FITTERS, SWITCHES
from elman.engines.base import WAITING
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
    made = enter(name, draw_problem(SMALL))
    if isinstance(made, str):
        assert "not installed" in made
        pytest.skip(made)
    for _ in range(2):  # a second run finds what the first one left
        got = made.results()
        assert got.keys() == want.keys()
        for result, value in want.items():
            assert_close(got[result], value, msg=f"{name}: {result}")
    made.close()


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
    one, T, B, H = draw_problem(SMALL), 6, 5, 19
    assert one.flop == 2 * 8 * H * H * T * B


def test_a_row():
    """Who is there is timed beside torch; what is asked for are the weights' gradients."""
    row = measure_steps(replace(SMALL, contestants=("torch", "elman-c", "serial")), LEAST)
    assert row["seconds"].keys() == {"torch", "elman-c", "serial"}
    assert row["wants"] == ["W_l0", "R_l0", "V_l0"]
    (layer,) = row["facts"]["serial"].values()
    assert all("without vectors" in record["isa"] for record in layer.values())


def test_phases():
    """Shares of the time, products and pointwise work of both ways apart."""
    found = measure_phases(replace(SMALL, measure=PHASES), LEAST)["phases"]
    assert 0 <= found.pop(WAITING) < 1
    assert sum(found.values()) == pytest.approx(1)
    for name in ("forward, steps: products", "backward, steps: pointwise", "weight gradients"):
        assert found[name] > 0


def rows_of(seconds, **more):
    """Rows of all cases of the suite, each contestant's time told by a function of both."""
    rows = []
    for case in CMU.cases:
        names = {name: steady(seconds(case, name)) for name in case.contestants}
        found = {"asked": case.to_json(), "seconds": names, "flop": 1e9 * case.B, **more}
        rows.append({"case": case.name, **found})
    return Rows(rows)


TIMES = {  # of others beside serial code
    "elman": 1 / 48,
    "per-run": 4 / 48,
    "per-step": 1 / 48,
    "halide": 3.0,
    "without specialization": 1.1 / 48,
    "without fusion": 1.9 / 48,
}


def as_reported(case, name):
    """Times of an implementation for which each statement holds."""
    used = set(SWITCHES) - set(COMBINATIONS.get(name, SWITCHES))
    time = TIMES.get(name, 1.0)
    for switch in used:
        time /= {"tiling": 2.0, "simd": 8.0, "threads": 3.0}[switch]
    if used == {"tiling", "threads"}:
        time *= 4  # tiles lose what threads gain
    if case.name in LENGTHS:
        time *= case.T**2 if name == "quadratic" else case.T
    if "1024" in case.name:
        time *= 1.2
    return time * (100 + case.B)


def test_claims_hold_for_what_they_were_made_from():
    """And each does not where all contestants take the same time."""
    phases = {"phases": {"steps: products": 0.6, "weight gradients": 0.3, "rest": 0.1}}
    held = {line[1]: line[4] for line in judged(CLAIMS, rows_of(as_reported, **phases))}
    assert {says for says, verdict in held.items() if verdict != "holds"} == set()
    phases = {"phases": {"steps: products": 0.1, "rest": 0.9}}
    same = judged(CLAIMS, rows_of(lambda case, name: 1.0, **phases))
    kept = {"backpropagation is linear in the steps", "larger batches take less time per sample"}
    assert {line[1] for line in same if line[4] == "holds"} <= kept


def test_nothing_is_judged_that_was_not_measured():
    """Without rows, and without Halide."""
    assert {line[4] for line in judged(CLAIMS, Rows([]))} == {"not measured"}
    absent = Rows(
        [{"case": PEERS, "seconds": {}, "flop": 1, "absent": {"halide": "it is not installed"}}]
    )
    (line,) = [line for line in judged(CLAIMS, absent) if line[0] == "4.2"]
    assert line[4:] == ("not measured", "Halide did not run: it is not installed")


def test_plots_take_the_rows_there_are():
    """No line for who was not measured."""
    assert CMU.plots(Rows([])) == []
    batch, steps = CMU.plots(rows_of(as_reported))
    assert {*batch["lines"]} == {"torch", "elman", "numpy"}
    assert batch["lines"]["elman"][0] == [*range(100, 1001, 100)]
    assert steps["lines"]["quadratic"][0] == [10, 20, 40, 80]


def test_the_quick_cases_are_small():
    """They end in seconds each."""
    assert all(case.B * case.H * case.H <= 1e7 for case in CMU.select(quick=True))
    assert COMBINED not in {case.name for case in CMU.select(quick=True)}
