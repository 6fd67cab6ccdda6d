"""Where the time of a training step goes: a kernel with a clock in it, on random data."""

from __future__ import annotations

from collections.abc import Mapping

from elman.engines import registry
from elman.engines.base import Job
from elman.tuning.trial import make_trial

_CALLS = 3  # after one that finds cold memory


def phases(job: Job, engine: str, schedule: str, steps: int, batch: int) -> Mapping[str, float]:
    """Seconds per call by phase, all threads together; nothing where the engine has no clock.

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
        for _ in range(_CALLS):
            trial.run(kernel)
    return {name: seconds / _CALLS for name, seconds in kernel.phases().items()}
