"""What would take too long or too much memory is forecast, refused with its reason, and told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cases import Effort
from benchmarks.claims import Rows, UnmeasuredError
from benchmarks.measures import limits
from benchmarks.measures.limits import (
    LIMITED_TRAIN,
    REFUSED,
    LimitedCase,
    measure_limited,
    refusals,
)
from benchmarks.problem import Contestant
from benchmarks.table import words
from helpers import need_engine

LEAST = Effort(1e-9, 1, 1)
CASE = LimitedCase(
    "case",
    LIMITED_TRAIN,
    "gru",
    *(20_000, 2, 4),
    contestants=("torch", "elman-aten"),
    baseline="torch",
    most=5.0,
)


@pytest.fixture
def clock(monkeypatch):
    """Contestants take what the test says for so many steps; says which lengths were run."""
    ran: list[tuple[str, int]] = []
    now = [0.0]

    def taking(seconds):
        def enter(name, problem):
            T = problem.case.T
            ran.append((name, T))

            def run():
                now[0] += seconds[name](T)

            return Contestant(run, dict, (), dict)

        monkeypatch.setattr(limits, "enter", enter)
        monkeypatch.setattr(limits.time, "perf_counter", lambda: now[0])
        return ran

    return taking


def test_time_is_forecast_by_short_runs(clock):
    """In proportion to the steps; what a call costs besides is not taken for a step's."""
    ran = clock({"torch": lambda T: 0.05 + 1e-5 * T, "elman-aten": lambda T: 0.01 * T})
    result = refusals(CASE)
    assert result == {
        "elman-aten": f"{REFUSED}a call would take about 200 s (limit 5 s), by 1 s measured at "
        "T = 100"
    }
    assert ran == [("torch", 100), ("torch", 1000), ("elman-aten", 100)]


def test_an_expensive_short_run_is_the_last(clock):
    """No run is made that is expected to take a large part of the limit."""
    ran = clock(dict.fromkeys(CASE.contestants, lambda T: 0.3 + 1e-6 * T))
    assert refusals(CASE).keys() == {*CASE.contestants}
    assert {T for _, T in ran} == {100}


def test_who_is_judged_by_a_refused_one_is_refused(clock, monkeypatch):
    """Without the baseline nobody agrees with anything: a row without times, and no failure."""
    clock({"torch": lambda T: 1.0 * T, "elman-aten": lambda T: 0.0})
    row = measure_limited(CASE, LEAST)
    assert row["seconds"] == {}
    assert row["absent"]["elman-aten"] == f"{REFUSED}torch, which judges it, is"
    output = words({**row, "case": CASE.name, "asked": CASE.to_json()})
    assert output["refused"].startswith("torch: a call would take about 20000 s (limit 5 s)")
    with pytest.raises(UnmeasuredError, match="torch was not measured in case: refused: a call"):
        Rows([{**row, "case": CASE.name}]).seconds(CASE.name, "torch")


def test_memory_is_forecast(monkeypatch):
    """By what explain says of the whole length, of which nothing is allocated; who would not fit is
    refused, who says nothing is not."""
    need_engine("c")
    case = replace(CASE, T=10**9, contestants=("elman-c", "torch"), baseline="elman-c")
    monkeypatch.setattr(limits, "_too_long", lambda case, name: None)
    monkeypatch.setattr(limits, "available", lambda: 150 << 30)
    result = refusals(case)
    assert result["elman-c"].startswith(f"{REFUSED}needs about ")
    assert result["elman-c"].endswith(" GiB, 150 available")
    assert result["torch"] == f"{REFUSED}elman-c, which judges it, is"  # itself, it would fit
    monkeypatch.setattr(limits, "available", lambda: None)
    assert refusals(case) == {}


def test_the_first_steps_are_compared_of_long_sequences(monkeypatch):
    """With the same weights, and the row says how many."""
    case = replace(CASE, T=300, contestants=("elman-aten", "torch"))
    assert "compared" not in measure_limited(case, LEAST)
    monkeypatch.setattr(limits, "ELEMENTS", 2000)
    monkeypatch.setattr(limits, "JUDGED", 20)
    row = measure_limited(case, LEAST)
    assert row["compared"] == 20
    assert row["seconds"].keys() == {"elman-aten", "torch"}
    output = words({**row, "case": case.name, "asked": case.to_json()})
    assert output["refused"] == "errors are those of the first 20 steps"
