"""Kernels on a machine that other processes want too."""

from __future__ import annotations

import pytest

from elman.engines.c import threads
from elman.engines.c.threads import Crowd


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands until it is set."""
    now = [100.0]
    monkeypatch.setattr(threads.time, "monotonic", lambda: now[0])
    return now


def test_a_single_late_worker_changes_nothing(clock):
    crowd = Crowd()
    for idle in (90, 0, 90, 0):
        crowd.tell(idle)
        assert not crowd.alone()


def test_two_bad_calls_make_it_alone_for_a_while(clock):
    crowd = Crowd()
    crowd.tell(40)
    crowd.tell(40)
    assert crowd.alone()
    clock[0] += 0.3
    assert not crowd.alone()


def test_the_pause_doubles_while_it_goes_on_and_shrinks_when_it_went_well(clock):
    crowd = Crowd()
    pauses = []
    for _ in range(8):
        crowd.tell(40)
        crowd.tell(40)
        start = clock[0]
        while crowd.alone():
            clock[0] += 0.05
        pauses.append(round(clock[0] - start, 1))
    assert pauses == sorted(pauses)
    assert 7.0 < pauses[-1] < 9.0, "there is a longest pause"
    clock[0] += 20.0
    crowd.tell(0)
    crowd.tell(40)
    crowd.tell(40)
    clock[0] += 0.3
    assert not crowd.alone(), "after a long good time the shortest pause is enough"


def test_kernels_use_one_thread_while_alone(clock, monkeypatch):
    crowd = Crowd()
    monkeypatch.setattr(threads, "crowd", crowd)
    usual = threads.workers()
    crowd.tell(99)
    crowd.tell(99)
    assert threads.workers() == 1
    clock[0] += 1.0
    assert threads.workers() == usual
