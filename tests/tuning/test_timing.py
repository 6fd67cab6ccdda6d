"""Interleaved timing: who is called when, and what becomes of the samples. No test looks at a
speed."""

from __future__ import annotations

import gc
from functools import partial
from types import SimpleNamespace

import pytest

from elman.tuning import timing
from elman.tuning.timing import Quartiles, quartiles, ratios, time_interleaved


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on while somebody sleeps."""
    made = SimpleNamespace(now=0.0)
    made.perf_counter = lambda: made.now
    made.sleep = lambda seconds: setattr(made, "now", made.now + seconds)
    monkeypatch.setattr(timing, "time", made)
    return made


def test_quartiles():
    """Median and quartiles of samples; of a single one, itself."""
    assert quartiles([5.0, 1.0, 3.0, 2.0, 4.0]) == Quartiles(3.0, 2.0, 4.0, 5)
    assert quartiles([7.0]) == Quartiles(7.0, 7.0, 7.0, 1)


def test_callables_alternate(monkeypatch):
    """Each runs once per round, every second round backwards, after warming up."""
    monkeypatch.setattr(timing, "SAMPLE_S", 0.0)
    called = []
    runs = {name: lambda name=name: called.append(name) for name in "abc"}
    samples = time_interleaved(runs, seconds=1e-9, rounds=3)

    assert "".join(called) == "abc" + "abc" + "cba" + "abc"
    assert {name: len(one) for name, one in samples.items()} == {"a": 3, "b": 3, "c": 3}


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

    time_interleaved({"short": short, "long": long}, seconds=1e-9, rounds=2)
    assert counts["long"] == 1 + 2
    assert counts["short"] >= 1 + 2 * (1 + 200)


def test_time_ends_the_rounds(monkeypatch):
    """Beyond the least number of rounds the time decides; there is an end to both."""
    monkeypatch.setattr(timing, "SAMPLE_S", 0.0)
    assert len(time_interleaved({"a": int}, seconds=60.0, rounds=2, most=11)["a"]) == 11
    assert len(time_interleaved({"a": int}, seconds=1e-9, rounds=2)["a"]) == 2


def test_garbage_is_collected_again_after_an_error():
    """The collector rests while timing, and only then."""

    def fail():
        assert gc.isenabled(), "warming up"
        raise KeyError

    with pytest.raises(KeyError):
        time_interleaved({"a": fail}, 0.1, 1)
    assert gc.isenabled()


def test_time_ends_for_all_processes():
    """However much time a process has left: another one's is over, in warming up and after."""
    for ends, rounds in ((1, 1 + 3), (3, 3 + 3), (5, 3 + 5)):
        asked, calls = [], []

        def agreed(over: bool, asked=asked, ends=ends) -> bool:
            assert not over
            asked.append(over)
            return len(asked) >= ends

        timings = time_interleaved(
            {"a": partial(calls.append, "a")}, 1e9, 3, single=True, agreed=agreed
        )
        assert len(calls) == rounds, ends
        assert len(timings["a"]) == rounds - min(ends, 3)


def test_ratios_are_paired():
    """Samples of one round are compared: a machine that slows down changes no ratio."""
    found = ratios({"torch": [2.0, 4.0, 8.0], "elman": [1.0, 2.0, 4.0]}, "torch")
    assert found == {"elman": Quartiles(2.0, 2.0, 2.0, 3)}
