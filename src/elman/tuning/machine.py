"""The machine that measurements depend on: processor, versions, threads, and waits for a core."""

from __future__ import annotations

import os
import platform
import time
from functools import cache
from pathlib import Path

import torch

from elman.engines.precision import precision
from elman.version import __version__


@cache
def processor() -> str:
    """The CPU's model name, or its numbers where Linux has only those, as on ARM."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    return named_in(text) or platform.processor() or platform.machine()


def named_in(cpuinfo: str) -> str:
    """The name of the first processor in the text of ``/proc/cpuinfo``; empty if there is none."""
    facts: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip().lower(), value.strip())
    if "model name" in facts or "cpu part" not in facts:
        return facts.get("model name", "")
    numbers = (facts.get(name, "?") for name in ("cpu implementer", "cpu part", "cpu variant"))
    return "ARM {} part {} variant {}".format(*numbers)


def cores() -> int:
    """Number of CPUs available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def verifying_facts() -> dict[str, str | int]:
    """Facts that must be equal for another process to trust a kernel's verification."""
    return {"cpu": processor(), "torch": torch.__version__, "elman": __version__}


def machine_facts(device: str = "cpu") -> dict[str, str | int]:
    """Facts that must be equal for a benchmarked choice to hold; JSON-able, equal on equal
    machines."""
    facts: dict[str, str | int] = {
        **verifying_facts(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
    }
    if device == "cuda":
        facts["gpu"] = torch.cuda.get_device_name()
        facts["float32"] = precision()
    return facts


# Share of runnable time that threads wait for a core; above it times are unreliable. On a quiet
# machine libraries' threads, which spin while they wait for work, take less from each other.
BUSY = 0.15
_HARDLY = 0.1  # of the elapsed time: threads that were runnable for less say nothing about load
_THREADS = Path("/proc/self/task")


def waited_s() -> float | None:
    """Time that all threads of this process have waited for a core so far (s).

    Returns:
        None on systems without this count (other than Linux), where load is unknown.
    """
    threads = _threads()
    return None if threads is None else sum(waited for _, waited in threads.values()) * 1e-9


class Waiting:
    """Waits of this process's threads for a core since the object was made."""

    def __init__(self) -> None:
        self._before, self._began = _threads() or {}, time.perf_counter()

    def share(self) -> float:
        """Share of the threads' runnable time in which they had no core; 0 if the system has no
        count, or threads were hardly ever runnable."""
        ran = waited = 0
        for thread, (after_ran, after_waited) in (_threads() or {}).items():
            before_ran, before_waited = self._before.get(thread, (0, 0))
            ran, waited = ran + after_ran - before_ran, waited + after_waited - before_waited
        runnable = ran + waited
        if runnable * 1e-9 <= _HARDLY * (time.perf_counter() - self._began):
            return 0.0
        return min(1.0, max(0.0, waited / runnable))


def describe_waiting(share: float) -> str:
    """Warning about times measured with such a share; "" if it is small."""
    if share <= BUSY:
        return ""
    return (
        f"Other programs took the cores for {share:.0%} of the time that measuring took: repeat it "
        "on a quiet machine."
    )


def _threads() -> dict[str, tuple[int, int]] | None:
    """Read the running and the waiting time of each thread of this process (ns)."""
    times: dict[str, tuple[int, int]] = {}
    try:
        threads = os.listdir(_THREADS)
    except OSError:
        return None
    for thread in threads:
        try:
            ran, waited = (_THREADS / thread / "schedstat").read_bytes().split()[:2]
            times[thread] = int(ran), int(waited)
        except FileNotFoundError:  # it has ended
            continue
        except (OSError, ValueError):
            return None
    return times
