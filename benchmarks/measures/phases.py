"""Time of a training step by phase."""

from __future__ import annotations

from typing import Any

from benchmarks.cases import Case, Effort, Way
from benchmarks.workloads.custom_cells import find_cell, spec_of
from elman import compiler
from elman.engines.base import Job
from elman.errors import EngineError
from elman.tuning.kernels import refusal
from elman.tuning.trial import phases, shares


def fitting_job(case: Case) -> Job:
    """A training step of a case that wants the gradients of the weights alone."""
    cell = find_cell(case.cell)
    return compiler.job(cell, spec_of(case, (entry.name for entry in cell.weights)))


def measure_phases(case: Case, effort: Effort) -> dict[str, Any]:
    """Shares of engine c's time by phase (``tuning.phases.shares``).

    Raises:
        EngineError: engine c cannot run the case.
    """
    del effort
    job = fitting_job(case)
    reason = refusal("c", job)
    if reason is not None:
        raise EngineError(reason)
    return {
        "phases": shares(phases(job, "c", "", case.T, case.B)),
        "wants": sorted(job.spec.wants),
        "dy": "dense",
    }


PHASES = Way("phases", measure_phases)
