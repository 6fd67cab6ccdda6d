"""What measures a case on a GPU, by its kind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from benchmarks.on_gpu.cases import Case
from benchmarks.on_gpu.device import barrier_time, peaks
from benchmarks.on_gpu.kernels import job_of, kernel_times, kernels, products_of
from benchmarks.on_gpu.matrices import matrix_times
from benchmarks.on_gpu.programs import (
    decoder_times,
    module_times,
    packed_times,
    program_times,
    step_times,
)
from benchmarks.on_gpu.timers import Clock, clock_of
from elman.tuning.trial import make_trial

KINDS: dict[str, Callable[[Case, str, Clock], dict[str, Any]]] = {
    "peaks": peaks,
    "barrier": barrier_time,
    "matrices": matrix_times,
    "module": module_times,
    "stack": module_times,
    "packed": packed_times,
    "step": step_times,
    "program": program_times,
    "decoder": decoder_times,
}  # cases of other kinds are timed by every schedule of their cell's kernels


def measure(case: Case, device: str) -> dict[str, Any]:
    """Measurements of a case, as a row."""
    with products_of(case):
        return KINDS.get(case.kind, kernel_times)(case, device, clock_of(device))


def compile_for(case: Case, device: str) -> dict[str, Any]:
    """Compile what a case needs: Triton keeps it where the next process finds it."""
    if case.kind not in KINDS or case.kind == "matrices":
        job = job_of(case, device)
        trial = make_trial(job, min(case.T, 2), case.B)
        for kernel in kernels(case, job, "triton")[0].values():
            with suppress(Exception):  # told when it is measured
                trial.run(kernel)
    return {}
