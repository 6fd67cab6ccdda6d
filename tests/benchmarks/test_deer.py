"""Suite ``deer``: what the paper says holds for rows as it reports them, and not for others."""

from __future__ import annotations

from typing import Any

from bench_rows import steady
from benchmarks.claims import Rows, judged
from benchmarks.measures.limits import REFUSED
from benchmarks.suites.deer import (
    AT_ONCE,
    CLAIMS,
    DEER,
    DIFFICULT,
    INITIAL,
    LOOP,
    OVER_LENGTHS,
    cell_of_grid,
)


def row(case, time, iterations: dict[Any, Any], grows: int, power: int) -> dict[str, Any]:
    """What a case would have given: times by contestant, iterations by solver."""
    told: dict[str, Any] = {"case": case.name, "asked": case.to_json()}
    if case.measure.name == "lengths":
        return {**told, "lengths": {"untrained": [[100, 1000], [3, 3 + grows]]}}
    if case.measure.name == "convergence":
        solvers = {
            name: {"iterations": iterations[case.name, name], "replaced": 7}
            for name in ("newton", "picard")
        }
        return {**told, "solvers": solvers, "solved_by": "windowed"}
    told["seconds"] = {name: steady(time(case, name)) for name in case.contestants}
    told["error"] = dict.fromkeys(case.contestants, 1e-6)
    told["memory"] = {AT_ONCE: {"peak": case.H**power << 20}}
    return told


def rows_of(time, iterations, grows=0, power=2) -> Rows:
    return Rows([row(case, time, iterations, grows, power) for case in DEER.cases])


def as_reported(case, name) -> float:
    """The loop takes its steps, all steps at once a little for each and n³."""
    if name != AT_ONCE:
        return 1e-5 * case.T * (10 if name == "torch" else 1)
    units = case.H if case.cell == "gru" else 1
    return units**3 * (3e-4 + 1e-9 * case.T)


COUNTS = {
    (case.name, solver): count
    for case in DEER.cases
    for solver, count in (("newton", 5), ("picard", None))
}


def test_claims_hold_for_what_they_were_made_from():
    """And those about speed do not where everyone takes the same time, nor others by other rows."""
    refused = {("gru after training", "newton"): None}
    held = {line[1]: line[4] for line in judged(CLAIMS, rows_of(as_reported, COUNTS | refused))}
    not_held = {says for says, verdict in held.items() if verdict != "holds"}
    assert not_held == {"a few iterations are enough"}  # where none converges, they are not
    other = dict.fromkeys(COUNTS, 30) | {(DIFFICULT, "newton"): None}
    same = judged(CLAIMS, rows_of(lambda case, name: 1.0, other, grows=9, power=1))
    assert {line[1] for line in same if line[4] == "holds"} == {"no loss of accuracy"}


def test_figures_are_ratios_to_the_loop():
    lines = {line[1]: line for line in judged(CLAIMS, rows_of(as_reported, COUNTS))}
    assert lines["the longer, the larger the gain, n = 1, in training"][3] == (
        "33x at 1,000, 323x at 10,000, 2500x at 100,000, 7692x at 1,000,000"
    )
    assert lines["work grows with the third power of n"][3] == "n^3.0 from 16 to 64 units"
    assert lines["after training it may not converge"][4] == "does not hold"


def test_nothing_is_judged_that_was_not_measured():
    """Without rows, or where all steps at once were refused in all cells but one."""
    assert {line[4] for line in judged(CLAIMS, Rows([]))} == {"not measured"}
    why = f"{REFUSED}a call would take about 9 s"
    cells = [
        {"case": cell_of_grid(1, T), "seconds": {LOOP: steady(1.0)}, "absent": {AT_ONCE: why}}
        for T in (1000, 10_000)
    ]
    lines = judged(CLAIMS, Rows(cells))
    assert {line[4] for line in lines} == {"not measured"}
    assert any(why in line[5] for line in lines)
    assert DEER.plots(Rows(cells))[0]["lines"].keys() == {LOOP}


def test_plots_take_the_cells_there_are():
    assert DEER.plots(Rows([])) == []
    gains, times = DEER.plots(rows_of(as_reported, COUNTS))
    assert gains["lines"]["n = 64"][0] == [1000, 10_000, 100_000, 1_000_000]
    assert times["lines"]["torch"][0] == [1, 2, 4, 8, 16, 32, 64]


def test_the_quick_cases_are_small():
    """A minute in all: no cell of the grid that takes seconds a call."""
    quick = {case.name for case in DEER.select(quick=True)}
    assert {INITIAL, cell_of_grid(1, 1000), cell_of_grid(16, 1000)} <= quick
    assert OVER_LENGTHS not in quick
    assert all(case.T <= 10_000 for case in DEER.select(quick=True))
