"""Claims of a source beside rows: what holds, what does not, what was not measured."""

from __future__ import annotations

from typing import Any

import pytest

from bench_rows import steady
from benchmarks.claims import (
    BUSY,
    Claim,
    Reasons,
    Rows,
    Spread,
    Trend,
    UnmeasuredError,
    Verdict,
    fit_trend,
    judged,
)
from benchmarks.suites import SUITES

SECONDS = {"elman": steady(1.0), "torch": steady(3.0)}
ROWS = Rows([{"case": "a", "seconds": SECONDS}, {"case": "b", "failed": "no memory"}])


def ratio(case: str, reference: str = "torch") -> Claim:
    def judge(rows: Rows) -> Verdict:
        faster = rows.faster(case, "elman", reference)
        reasons = Reasons("nothing waits", "everything waits")
        return Verdict(faster >= 2, f"{faster:.1f}x", facts="one core", reasons=reasons)

    return Claim("4.1", f"{case} is twice as fast", "2x on 61 cores", judge)


def test_claims_are_judged_from_rows():
    lines = judged([ratio("a"), ratio("b"), ratio("c"), ratio("a", "jax")], ROWS)
    assert lines[0][2:] == ("2x on 61 cores", "3.0x", "holds", "nothing waits; one core")
    assert [line[4] for line in lines[1:]] == ["not measured"] * 3
    assert [line[5] for line in lines[1:]] == [
        "b was not measured",
        "c was not measured",
        "jax was not measured in a",
    ]


def test_a_verdict_has_a_reason_of_its_own():
    """Two texts or none: what makes a claim hold never stands beside "does not hold"."""
    slow = Rows([{"case": "a", "seconds": {"elman": steady(3.0), "torch": steady(3.0)}}])
    (line,) = judged([ratio("a")], slow)
    assert line[4:] == ("does not hold", "everything waits; one core")
    assert Verdict(False, "1x").explanation == ""
    for texts in (("alike", "alike"), ("", "one"), ("one", "")):
        with pytest.raises(AssertionError):
            Reasons(*texts)
    with pytest.raises(TypeError):
        Verdict(True, "1x", "whichever")  # pyright: ignore[reportCallIssue]


def test_a_busy_row_gives_no_verdict():
    """Of claims that read it, and of no others."""
    rows: list[dict[str, Any]] = [{"case": case, "seconds": SECONDS} for case in "ab"]
    rows[0]["waited"] = 0.4
    rows[1]["waited"] = 0.05
    busy, quiet = judged([ratio("a"), ratio("b")], Rows(rows))
    assert busy[3:5] == ("", BUSY)
    assert busy[5].startswith("a: Other programs took the cores for 40% of the time")
    assert quiet[4] == "holds"


@pytest.mark.parametrize("suite", [s for s in SUITES.values() if s.claims], ids=lambda s: s.name)
def test_without_rows_nothing_is_judged(suite):
    """Every claim says which row is missing."""
    lines = judged(suite.claims, Rows([]))
    assert {line[4] for line in lines} == {"not measured"}
    assert all(line[5] for line in lines)


def test_what_a_gain_is():
    """Two per cent in the median, and three rounds of four; a loss is the other's gain."""
    assert Spread(1.05, 1.01, 1.1).gains
    assert not Spread(1.05, 0.99, 1.1).gains  # rounds that say otherwise
    assert not Spread(1.01, 1.005, 1.02).gains  # no difference
    assert Spread(2.2, 2.0, 2.5).reaches(2)
    assert not Spread(2.2, 1.9, 2.5).reaches(2)  # in too few rounds
    assert Spread(0.9, 0.8, 0.95).loses
    assert not Spread(0.9, 0.8, 1.05).loses
    assert Spread(0.5, 0.4, 0.8).inverse == Spread(2.0, 1.25, 2.5)


def test_two_ratios_to_a_third():
    """Their deviations add up as independent ones do."""
    result = Spread(2.0, 2.0 / 1.2, 2.0 * 1.1).over(Spread(1.0, 1 / 1.1, 1.1))
    assert result.median == 2.0
    assert 2.0 * 1.1 < result.q3 < 2.0 * 1.1 * 1.1
    assert 2.0 / 1.2 / 1.1 < result.q1 < 2.0 / 1.2
    alone = Spread(2.0, 1.5, 3.0).over(Spread(1.0, 1.0, 1.0))
    assert (alone.q1, alone.q3) == pytest.approx((1.5, 3.0))


def test_rounds_beside_the_baseline_are_used():
    """Times of a machine that drifts spread; the ratio of each round does not."""
    drifting = {"median": 1.0, "q1": 0.5, "q3": 2.0, "samples": 5}
    row = {
        "case": "a",
        "asked": {"baseline": "torch"},
        "seconds": {"torch": drifting, "elman": drifting, "c": drifting},
        "ratio": {"elman": steady(2.0), "c": steady(4.0)},
    }
    rows = Rows([row])
    assert rows.ratio("a", "elman", "torch") == Spread(2.0, 2.0, 2.0)
    assert rows.ratio("a", "torch", "elman") == Spread(0.5, 0.5, 0.5)
    assert rows.ratio("a", "c", "elman") == Spread(2.0, 2.0, 2.0)
    del row["ratio"]
    assert Rows([row]).ratio("a", "c", "elman").q3 == pytest.approx(2**2**0.5)


def test_trends():
    """A power law with its error: one step up is no rise, and two points are no trend."""
    assert fit_trend([(1, 1.0), (2, 4.0), (4, 16.0)]) == Trend(pytest.approx(2), pytest.approx(0))
    falling = fit_trend([(1, 0.087), (2, 0.057), (4, 0.05), (8, 0.058), (16, 0.048), (32, 0.033)])
    assert falling.falls
    assert not falling.rises
    noise = fit_trend([(1, 1.0), (2, 1.4), (4, 0.9), (8, 1.3)])
    assert not noise.falls
    assert not noise.rises
    for points in ([(1, 1.0), (2, 2.0)], [(1, 1.0), (1, 2.0), (1, 3.0)]):
        with pytest.raises(UnmeasuredError, match="a trend needs three points"):
            fit_trend(points)
