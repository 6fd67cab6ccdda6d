"""Time for which threads of this process were runnable and had no core: the load of others."""

from __future__ import annotations

import os
import time
from pathlib import Path

# Share of the time that threads want a core, from which times say little. On a quiet machine
# libraries' threads, which spin while they wait for work, take less of it from each other.
BUSY = 0.15
_HARDLY = 0.1  # of the time that passed
_THREADS = Path("/proc/self/task")


def waited_s() -> float | None:
    """Time that all threads of this process have waited for a core so far (s).

    Returns:
        None where the system does not say (other than Linux): then nothing is known about load.
    """
    threads = _threads()
    return None if threads is None else sum(waited for _, waited in threads.values()) * 1e-9


class Waiting:
    """Waits of this process's threads for a core, from when this is made."""

    def __init__(self) -> None:
        self._before, self._began = _threads() or {}, time.perf_counter()

    def share(self) -> float:
        """Share of the time that threads were runnable in which they had no core; 0 where the
        system does not tell, or threads were hardly ever runnable."""
        ran = waited = 0
        for thread, (after_ran, after_waited) in (_threads() or {}).items():
            before_ran, before_waited = self._before.get(thread, (0, 0))
            ran, waited = ran + after_ran - before_ran, waited + after_waited - before_waited
        runnable = ran + waited
        if runnable * 1e-9 <= _HARDLY * (time.perf_counter() - self._began):
            return 0.0
        return min(1.0, max(0.0, waited / runnable))


def waiting_in_words(share: float) -> str:
    """Warning about times that were measured with such a share; "" if it is small."""
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
