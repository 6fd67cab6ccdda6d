"""Kernels on a machine that other processes want too."""

from __future__ import annotations

import pytest
import torch

from calls import call
from elman import cells
from elman.engines.c.engine import ENGINE
from elman.engines.c.process import threads
from elman.engines.c.process.threads import Oversubscription
from helpers import Sizes, job_of, need, random_case
from products import some_of


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands until it is set."""
    now = [100.0]
    monkeypatch.setattr(threads.time, "monotonic", lambda: now[0])
    return now


def lose(oversubscription: Oversubscription) -> None:
    """Calls in a row that lose 3 ms each, until it is alone."""
    for _ in range(10):
        if not oversubscription.alone():
            oversubscription.tell(3000)


def test_a_late_worker_now_and_then_changes_nothing(clock):
    oversubscription = Oversubscription()
    for stolen in (9000, 9000, *(-2500,) * 8) * 20:
        oversubscription.tell(stolen)
        assert not oversubscription.alone()


def test_many_bad_calls_make_it_alone_for_a_while(clock):
    oversubscription = Oversubscription()
    lose(oversubscription)
    assert oversubscription.alone()
    clock[0] += 0.3
    assert not oversubscription.alone()


def test_the_pause_doubles_while_it_goes_on_and_shrinks_when_it_went_well(clock):
    oversubscription = Oversubscription()
    pauses = []
    for _ in range(8):
        lose(oversubscription)
        start = clock[0]
        while oversubscription.alone():
            clock[0] += 0.05
        pauses.append(round(clock[0] - start, 1))
    assert pauses == sorted(pauses)
    assert 7.0 < pauses[-1] < 9.0, "there is a longest pause"
    clock[0] += 20.0
    oversubscription.tell(-1)
    lose(oversubscription)
    clock[0] += 0.3
    assert not oversubscription.alone(), "after a long good time the shortest pause is enough"


def test_kernels_use_one_thread_while_alone(clock, monkeypatch):
    oversubscription = Oversubscription()
    monkeypatch.setattr(threads, "oversubscription", oversubscription)
    usual = threads.workers()
    lose(oversubscription)
    assert threads.workers() == 1
    clock[0] += 1.0
    assert threads.workers() == usual


def test_a_choice_made_in_a_contest_is_one_for_quiet_times(clock, monkeypatch):
    """Candidates are those of all threads, though kernels run on one just now."""
    job = job_of(random_case(cells.gru, Sizes(4, 4, 128, 128)))
    need("c", job)
    quiet = ENGINE.schedules(job, 100, 4)
    oversubscription = Oversubscription()
    monkeypatch.setattr(threads, "oversubscription", oversubscription)
    lose(oversubscription)
    assert threads.workers() == 1
    assert ENGINE.schedules(job, 100, 4) == quiet
    assert threads.threads() == 1 or quiet != ("one",)


@pytest.mark.parametrize(
    "cell, split",
    some_of([cells.gru, cells.lstm_layernorm], ["one", "batch", "units"], together=1),
)
def test_bits_do_not_depend_on_free_cores(cell, split, monkeypatch):
    """One thread does the shares of all one after another: the same bits as when all were free."""
    case = random_case(cell, Sizes(T=70, B=7, I=19, H=37), 0)
    need("c", job_of(case))
    monkeypatch.setattr("elman.engines.c.run.kernel.threads", lambda: 3)
    monkeypatch.setattr("elman.engines.c.run.kernel._WORTH_S", 0.0)
    found = []
    for free in (3, 1, 2):
        monkeypatch.setattr("elman.engines.c.run.kernel.workers", lambda free=free: free)
        kernel = ENGINE.compile(job_of(case), split)
        found.append(call(kernel, case))
    for other in found[1:]:
        for name, value in found[0].items():
            assert torch.equal(value, other[name]), name
