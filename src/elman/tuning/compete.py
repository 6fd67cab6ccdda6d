"""Kernels side by side: who agrees with the oracle, and how fast each of those is."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from elman.engines.base import Job, Kernel
from elman.errors import ElmanError
from elman.ir.types import shape_size
from elman.tuning.agreement import disagreement
from elman.tuning.measure import medians, seconds
from elman.tuning.trial import Trial, make_trial

BUDGET_S = 0.2  # (s) for timing all candidates of one size class together, compiling aside
TIE = 1.03  # ratio of medians up to which two candidates are as good as each other
_ROUND_S = 0.06  # (s) sequences are cut so that each candidate once takes about this
_HOPELESS = 2.0  # times the best in the first round: not timed again
_STEPS = 5  # on which every kernel is compared with the oracle, in float64 …
_FLOPS = 2e8  # … with so many samples that this is about the work of it
_LEAST = 2  # steps that are timed, however long each takes
_agreed: WeakKeyDictionary[Kernel, bool] = WeakKeyDictionary()  # kernels found right before


def compete(
    job: Job, kernels: Mapping[str, Kernel], oracle: Kernel, steps: int, batch: int
) -> tuple[dict[str, float], dict[str, str]]:
    """Verify all kernels, then time those that agree, in turn.

    A kernel that agreed with the oracle at one size in this process is not asked again at another:
    tests cover what differs between sizes. Long sequences are cut to what the budget allows, the
    same for all.

    Args:
        job: what they compute.
        kernels: by label.
        oracle: the kernel that is right.
        steps: T.
        batch: B.

    Returns:
        medians_s: (s) of those that agree, forward + backward; never 0.
        wrong: why the others are not to be used.
    """
    wrong: dict[str, str] = {}
    few = min(steps, _STEPS)
    some = max(1, min(batch, int(_FLOPS / (few * _flops(job)))))
    short = make_trial(job, few, some)
    able = _agreeing(short, kernels, oracle, few, wrong)
    if not able:
        return {}, wrong
    taken = sum(seconds(lambda k=kernel: short.run(k)) for kernel in able.values())
    per_step = max(taken, 1e-6) / few * batch / some
    cut = max(min(steps, _LEAST), min(steps, int(_ROUND_S / per_step)))
    trial = make_trial(job, cut, batch)
    if len(able) > 1 and not all(kernel in _agreed for kernel in able.values()):
        able = _unanimous(trial, able, oracle, cut, wrong)
    else:
        for kernel in able.values():
            trial.run(kernel)  # warm at this size
    for kernel in able.values():
        _agreed[kernel] = True
    runs = {name: (lambda k=kernel: trial.run(k)) for name, kernel in able.items()}
    found = medians(runs, 0.0)
    limit = _HOPELESS * min(found.values())
    close = {name: run for name, run in runs.items() if found[name] <= limit}
    if len(close) > 1:
        found |= medians(close, BUDGET_S - sum(found.values()), tie=TIE)
    return {name: max(median, 1e-9) for name, median in found.items()}, wrong


def _flops(job: Job) -> float:
    """Rough work of one step of one sample, forward and backward (FLOP)."""
    sizes = [shape_size(weight.shape, job.spec.sizes) for weight in job.graph.weights]
    return 6.0 * sum(rows * columns for rows, columns in (s for s in sizes if len(s) == 2)) + 1.0


def _agreeing(
    trial: Trial,
    kernels: Mapping[str, Kernel],
    oracle: Kernel,
    steps: int,
    wrong: dict[str, str],
) -> dict[str, Kernel]:
    able = {name: kernel for name, kernel in kernels.items() if kernel in _agreed}
    if len(able) == len(kernels):
        return able
    want = trial.double().run(oracle)
    for name, kernel in kernels.items():
        if name in able:
            continue
        try:
            off = disagreement(trial.run(kernel), want, trial.job.spec.dtype, steps)
        except (ElmanError, RuntimeError) as error:
            off = f"failed: {error}"
        if off is None:
            able[name] = kernel
        else:
            wrong[name] = f"does not agree with the reference: {off}"
    return able


def _unanimous(
    trial: Trial,
    kernels: dict[str, Kernel],
    oracle: Kernel,
    steps: int,
    wrong: dict[str, str],
) -> dict[str, Kernel]:
    """All kernels if they agree at full length; else the oracle says who is right."""
    results = [trial.run(kernel) for kernel in kernels.values()]
    dtype = trial.job.spec.dtype
    if all(disagreement(result, results[0], dtype, steps) is None for result in results[1:]):
        return kernels
    return _agreeing(trial, kernels, oracle, steps, wrong)
