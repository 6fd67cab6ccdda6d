"""Facts of the machine, and how long threads waited for a core."""

from __future__ import annotations

import pytest

from elman.train.run.run import machine_facts
from elman.tuning import machine
from elman.tuning.machine import BUSY, Waiting, describe_waiting, waited_s

X86 = """\
processor	: 0
vendor_id	: GenuineIntel
cpu family	: 6
model		: 143
model name	: Intel(R) Xeon(R) Platinum 8481C: 2.70GHz

processor	: 1
model name	: another
"""
ARM = """\
processor	: 0
BogoMIPS	: 50.00
Features	: fp asimd
CPU implementer	: {implementer}
CPU architecture: 8
CPU variant	: 0x3
CPU part	: 0xd0c
CPU revision	: 1
"""


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (X86, "Intel(R) Xeon(R) Platinum 8481C: 2.70GHz"),
        (ARM.format(implementer="0x41"), "ARM 0x41 part 0xd0c variant 0x3"),
        ("CPU part : 0xd0c\n", "ARM ? part 0xd0c variant ?"),
        ("hart : 0\nisa : rv64gc\n", ""),
        ("", ""),
    ],
)
def test_the_name_of_a_processor(cpuinfo, name):
    """Linux tells a name on x86, numbers on ARM, and sometimes neither."""
    assert machine.named_in(cpuinfo) == name


def test_parts_of_two_designers_are_two_processors():
    """Numbers of parts are their designer's own, and choices are kept for a processor."""
    names = {machine.named_in(ARM.format(implementer=number)) for number in ("0x41", "0x61")}
    assert len(names) == 2


def test_a_run_names_the_processor_that_choices_are_kept_for():
    assert machine_facts()["processor"] == machine.processor() != ""


@pytest.fixture
def threads(tmp_path, monkeypatch):
    """Threads of a system: how long each had a core, and waited for one (ns)."""
    monkeypatch.setattr(machine, "_THREADS", tmp_path)

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
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(clock))
    threads(a=(0, 0))
    since = Waiting()
    threads(a=(10, 90))
    assert since.share() == 0.0


def test_where_the_system_does_not_say(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "_THREADS", tmp_path / "none")
    assert Waiting().share() == 0.0
    assert waited_s() is None


def test_in_words():
    assert describe_waiting(BUSY) == ""
    assert describe_waiting(0.42).startswith("Other programs took the cores for 42% of the time")
