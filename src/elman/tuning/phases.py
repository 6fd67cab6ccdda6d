"""Where the time of a training step goes: a kernel with a clock in it, on random data."""

from __future__ import annotations

import time
from collections.abc import Mapping

from elman.engines import registry
from elman.engines.base import WAITING, Job
from elman.tuning.trial import make_trial

_CALLS = 9  # after one that finds cold memory
_ENOUGH_S = 0.3  # no call begins after so long


def phases(job: Job, engine: str, schedule: str, steps: int, batch: int) -> Mapping[str, float]:
    """Seconds of a call by phase, all threads together: of the call that others disturbed least.
    Nothing where the engine has no clock.

    Args:
        job: what is computed; forward and, in training, backward.
        engine: its name.
        schedule: one of the engine's.
        steps: T.
        batch: B.
    """
    found = registry.find(engine)
    with found.undisturbed():
        kernel = found.timed(job, schedule)
        if kernel is None:
            return {}
        trial = make_trial(job, steps, batch)
        trial.run(kernel)
        kernel.phases()
        taken: list[Mapping[str, float]] = []
        end = time.perf_counter() + _ENOUGH_S
        while not taken or (len(taken) < _CALLS and time.perf_counter() < end):
            trial.run(kernel)
            taken.append(kernel.phases())
    return min(taken, key=lambda phases: sum(phases.values()))


def shares(taken: Mapping[str, float]) -> dict[str, float]:
    """Each phase as a share of the time in which threads compute, and :data:`WAITING` as one of all
    their time."""
    total = sum(taken.values())
    busy = total - taken.get(WAITING, 0.0)
    return {name: seconds / (total if name == WAITING else busy) for name, seconds in taken.items()}
