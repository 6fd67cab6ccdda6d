"""Claims of a source beside rows: what holds, what does not, what was not measured."""

from __future__ import annotations

from typing import Any

import pytest

from bench_rows import steady
from benchmarks.claims import (
    UNDECIDED,
    UNTRIED,
    Claim,
    Difference,
    Reasons,
    Rows,
    Spread,
    Trend,
    UnmeasuredError,
    Verdict,
    at_least,
    difference,
    every,
    fit_trend,
    judged,
    some,
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
    assert [line[4] for line in lines[1:]] == [UNTRIED] * 3
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
    assert busy[3:5] == ("", UNDECIDED)
    assert busy[5].startswith("a: Other programs took the cores for 40% of the time")
    assert quiet[4] == "holds"


def test_a_count_is_never_busy():
    """Other programs change neither counts, bytes nor losses."""
    claim = Claim("1", "ten", "", lambda rows: Verdict(rows["a"]["samples"] <= 10, "10"))
    timed = Claim("1", "ten", "", lambda rows: Verdict(rows["a"]["phases"]["x"] <= 10, "10"))
    row = {"case": "a", "samples": 10, "phases": {"x": 1}, "waited": 0.9}
    assert judged([timed], Rows([row]))[0][4] == UNDECIDED
    del row["phases"]
    assert judged([claim], Rows([row]))[0][4] == "holds"


def test_what_the_rows_cannot_tell_is_not_decided():
    """Between its quartiles a limit is neither reached nor missed; what varies more than it is off
    is no verdict, and one clear answer decides for several."""
    rows = Rows([{"case": "a", "seconds": {"elman": steady(1.0), "torch": steady(2.0)}}])
    claim = Claim("1", "twice", "", lambda rows: Verdict(None, "2x", facts="one core"))
    (line,) = judged([claim], rows)
    assert line[3:5] == ("2x", UNDECIDED)
    assert line[5].endswith("off the limit; one core")
    assert every([True, None]) is None
    assert every([False, None]) is False
    assert every([True, True]) is True
    assert some([True, None]) is True
    assert some([False, None]) is None
    assert some([False, False]) is False
    assert [at_least(x, 0.7, 0.02) for x in (0.6, 0.69, 0.71, 0.8)] == [False, None, None, True]


def test_differences_of_seeds():
    """By two standard errors; one seed is none."""
    gap = difference([3.0, 3.1, 3.2], [2.5, 2.6, 2.7])
    assert gap == Difference(pytest.approx(0.5), pytest.approx(0.1 * (2 / 3) ** 0.5))
    assert gap.exceeds(0) is True
    assert gap.exceeds(0.5) is None
    assert gap.exceeds(1) is False
    with pytest.raises(UnmeasuredError, match="a difference needs two seeds"):
        difference([3.0], [2.0, 2.1])


@pytest.mark.parametrize("suite", [s for s in SUITES.values() if s.claims], ids=lambda s: s.name)
def test_without_rows_nothing_is_judged(suite):
    """Every claim says which row is missing."""
    lines = judged(suite.claims, Rows([]))
    assert {line[4] for line in lines} == {UNTRIED}
    assert all(line[5] for line in lines)


def test_what_a_gain_is():
    """Two per cent in the median, and three rounds of four; a loss is the other's gain."""
    assert Spread(1.05, 1.01, 1.1).gains
    assert Spread(1.05, 0.99, 1.1).gains is None  # rounds that say otherwise
    assert Spread(1.01, 1.005, 1.02).gains is False  # no difference
    assert Spread(2.2, 2.0, 2.5).reaches(2)
    assert Spread(2.2, 1.9, 2.5).reaches(2) is None  # in too few rounds
    assert Spread(1.7, 1.5, 1.9).reaches(2) is False
    assert Spread(1.2, 1.1, 1.3).within(1.25) is None
    assert Spread(1.2, 1.1, 1.2).within(1.25)
    assert Spread(0.9, 0.8, 0.95).loses
    assert Spread(0.9, 0.8, 1.05).loses is None
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
    noise = fit_trend([(1, 1.0), (2, 1.4), (4, 0.9), (8, 1.3)])
    assert noise.falls is None
    assert noise.rises is None
    assert Trend(0.01, 0.01).rises is False
    assert falling.rises is False
    assert Trend(1.2, 0.1).exceeds(1.5) is False
    assert Trend(1.4, 0.1).exceeds(1.5) is None
    for points in ([(1, 1.0), (2, 2.0)], [(1, 1.0), (1, 2.0), (1, 3.0)]):
        with pytest.raises(UnmeasuredError, match="a trend needs three points"):
            fit_trend(points)
