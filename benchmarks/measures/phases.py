"""Time of a training step by phase, and by the ten steps of a report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.cases import Case, Effort, Way
from benchmarks.workloads.custom_cells import find_cell, spec_of
from elman import compiler
from elman.engines.base import WAITING, Job
from elman.errors import EngineError
from elman.tuning.kernels import refusal
from elman.tuning.trial import phases, shares

_H, _Y, _ARGUMENT = "2 h", "3 ŷ", "8 gradient of h's argument"
TEN = {  # of table 4.10 of Han & Uboweja (2016), and their shares of the time
    "1 begin forward": 0.0005,
    _H: 0.2216,
    _Y: 0.0578,
    "4 keep what backward needs": 0.2255,
    "5 loss": 0.0079,
    "6 begin backward": 0.0016,
    "7 gradient of ŷ's argument": 0.0054,
    _ARGUMENT: 0.2333,
    "9 gradients of the weights": 0.2460,
    "10 update": 0.0006,
}
_STEP_OF = {  # of the phases of engine c
    "forward, weights packed": "1 begin forward",
    "forward, before the loop: products": _H,  # W x of all steps
    "forward, before the loop: pointwise": _H,
    "forward, steps: products": _H,  # R h, and V h, which is the third step's
    "forward, steps: pointwise": _H,
    "backward, weights packed": "6 begin backward",
    "backward, before the loop: products": _ARGUMENT,  # Vᵀ of all steps
    "backward, before the loop: pointwise": "7 gradient of ŷ's argument",
    "backward, steps: products": _ARGUMENT,  # Rᵀ
    "backward, steps: pointwise": _ARGUMENT,
    "weight gradients": "9 gradients of the weights",
}
_CALLS = 10


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
    return {
        "phases": shares(_phases_of(job, case)),
        "wants": sorted(job.spec.wants),
        "dy": "dense",
    }


def _phases_of(job: Job, case: Case) -> Mapping[str, float]:
    reason = refusal("c", job)
    if reason is not None:
        raise EngineError(reason)
    return phases(job, "c", "", case.T, case.B)


def measure_breakdown(case: Case, effort: Effort) -> dict[str, Any]:
    """Shares of a training step of ``tanh_readout`` by the steps of :data:`TEN`: engine c's phases,
    and torch's loss, its gradient, and the update. What the backward needs is kept by the code that
    computes it, at no time of its own. Both products of a step of the forward, R h and V h, are one
    phase, which is divided by their multiplications.

    Raises:
        EngineError: engine c cannot run the case.
    """
    del effort
    seconds = by_ten(_phases_of(fitting_job(case), case))
    y, target = torch.rand(2, case.T, case.B, case.H)
    weights = [torch.nn.Parameter(torch.rand(case.H, case.H)) for _ in "WRV"]
    for weight in weights:
        weight.grad = torch.rand_like(weight)
    update = torch.optim.SGD(weights, 1e-3, fused=True)
    seconds["5 loss"] += _shortest(lambda: (y - target).square_().sum())
    seconds["7 gradient of ŷ's argument"] += _shortest(lambda: (y - target).mul_(2))
    seconds["10 update"] += _shortest(update.step)
    total = sum(seconds.values())
    return {"phases": {step: s / total for step, s in seconds.items()}, "wants": [], "dy": "dense"}


def by_ten(times: Mapping[str, float]) -> dict[str, float]:
    """Seconds of all threads by the steps of :data:`TEN`. Raises KeyError: a phase has no step."""
    seconds = dict.fromkeys(TEN, 0.0)
    for phase, s in times.items():
        if phase != WAITING:
            seconds[_STEP_OF[phase]] += s
    half = times["forward, steps: products"] / 2  # V and R have one size
    seconds[_H] -= half
    seconds[_Y] += half
    return seconds


def _shortest(call: Callable[[], object]) -> float:
    """Seconds of the shortest of several calls, of all threads."""
    samples = list[float]()
    for _ in range(_CALLS):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return min(samples) * torch.get_num_threads()


PHASES, BREAKDOWN = Way("phases", measure_phases), Way("breakdown", measure_breakdown)
