"""How long threads wanted a core and had none."""

from __future__ import annotations

import pytest

from elman.tuning import waiting
from elman.tuning.waiting import BUSY, Waiting, waited_s, waiting_in_words


@pytest.fixture
def threads(tmp_path, monkeypatch):
    """Threads of a system: how long each had a core, and waited for one (ns)."""
    monkeypatch.setattr(waiting, "_THREADS", tmp_path)

    def write(**times: tuple[int, int]) -> None:
        for name, (ran, waited) in times.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "schedstat").write_text(f"{ran}000000000 {waited}000000000 7\n")

    return write


def test_the_share_of_what_was_wanted(threads):
    """Of all threads, of what passed since; one that is new counts from its beginning."""
    threads(a=(100, 900))
    since = Waiting()
    assert since.share() == 0.0
    threads(a=(160, 900), b=(20, 20))
    assert since.share() == pytest.approx(20 / 100)
    assert waited_s() == pytest.approx(920)


def test_a_thread_that_ends_takes_its_times_along(threads, tmp_path):
    threads(a=(100, 0), b=(1000, 1000))
    since = Waiting()
    (tmp_path / "b" / "schedstat").unlink()
    threads(a=(190, 10))
    assert since.share() == pytest.approx(0.1)


def test_threads_that_hardly_wanted_a_core_say_nothing(threads, monkeypatch):
    """As where others compute, and this process waits for them."""
    clock = iter([0.0, 1000.0])
    monkeypatch.setattr(waiting.time, "perf_counter", lambda: next(clock))
    threads(a=(0, 0))
    since = Waiting()
    threads(a=(10, 90))
    assert since.share() == 0.0


def test_where_the_system_does_not_say(monkeypatch, tmp_path):
    monkeypatch.setattr(waiting, "_THREADS", tmp_path / "none")
    assert Waiting().share() == 0.0
    assert waited_s() is None


def test_in_words():
    assert waiting_in_words(BUSY) == ""
    assert waiting_in_words(0.42).startswith("Other programs took the cores for 42% of the time")
