"""Contestants in turn: who is called when, what a first call is. No test looks at a speed."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

from benchmarks import timing
from benchmarks.timing import time_side_by_side


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on while somebody sleeps."""
    made = SimpleNamespace(now=0.0)
    made.perf_counter = lambda: made.now
    made.sleep = lambda seconds: setattr(made, "now", made.now + seconds)
    monkeypatch.setattr(timing, "time", made)
    monkeypatch.setattr("elman.tuning.timing.time", made)
    return made


def test_callables_alternate(monkeypatch):
    """Each runs once per round, every second round backwards, after warming up one by one."""
    monkeypatch.setattr(timing, "SAMPLE_S", 0.0)
    called = []
    runs = {name: lambda name=name: called.append(name) for name in "abc"}
    samples = time_side_by_side(runs, seconds=1e-9, rounds=3)

    assert "".join(called) == "aaabbbccc" + "abc" + "cba" + "abc"
    assert {name: len(one.steady) for name, one in samples.items()} == {"a": 3, "b": 3, "c": 3}


def test_short_calls_are_repeated_within_a_sample(monkeypatch, clock):
    """A call that the clock cannot resolve is called until it can; a long one once."""
    monkeypatch.setattr(timing, "SAMPLE_S", 2e-3)
    counts = {"short": 0, "long": 0}

    def short():
        counts["short"] += 1
        clock.sleep(1e-5)

    def long():
        counts["long"] += 1
        clock.sleep(3e-3)

    time_side_by_side({"short": short, "long": long}, seconds=1e-9, rounds=2)
    assert counts["long"] == timing.WARM_UP + 2
    assert counts["short"] > timing.WARM_UP + 2 * 200


@pytest.mark.parametrize("sample_s", [0.0, 2e-3], ids=["one call", "several calls"])
def test_first_calls_follow_another(monkeypatch, clock, sample_s):
    """A call that finds what another one left is a first call, also where samples are single calls;
    one that follows its own is none, and no steady sample has a first call among several."""
    monkeypatch.setattr(timing, "SAMPLE_S", sample_s)
    cold_s, last = 4e-3, [""]

    def run(name):
        clock.sleep(cold_s if last[0] != name else 1e-4)
        last[0] = name

    runs = {name: lambda name=name: run(name) for name in "ab"}
    samples = time_side_by_side(runs, seconds=1e-9, rounds=4)
    # a b, b a, a b, b a: the second of a round comes after the other one
    assert {name: len(one.first) for name, one in samples.items()} == {"a": 3, "b": 2}
    for one in samples.values():
        assert one.first == pytest.approx([cold_s] * len(one.first))
        assert sample_s == 0 or max(one.steady) < cold_s


def test_one_alone_and_those_far_away_have_no_first_calls(monkeypatch):
    """Nobody runs before them, or nobody knows."""
    monkeypatch.setattr(timing, "SETTLE_S", 0.0)
    assert time_side_by_side({"a": int}, 1e-9, 3)["a"].first == []
    found = time_side_by_side({"a": int, "b": int}, 1e-9, 3, {"b": lambda calls: 1e-6})
    assert found["b"].first == []
    assert found["b"].steady == [1e-6] * 3
    assert found["a"].first


def test_time_ends_the_rounds(monkeypatch):
    """Beyond the least number of rounds the time decides; there is an end to both."""
    monkeypatch.setattr(timing, "SAMPLE_S", 0.0)
    monkeypatch.setattr(timing, "MOST_ROUNDS", 11)
    assert len(time_side_by_side({"a": int}, seconds=60.0, rounds=2)["a"].steady) == 11
    assert len(time_side_by_side({"a": int}, seconds=1e-9, rounds=2)["a"].steady) == 2


def test_garbage_is_collected_again_after_an_error():
    """The collector rests while timing, and only then."""

    def fail():
        assert gc.isenabled(), "warming up"
        raise KeyError

    with pytest.raises(KeyError):
        time_side_by_side({"a": fail}, 0.1, 1)
    assert gc.isenabled()
