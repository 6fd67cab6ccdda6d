"""The choice whether several kernels run at once or one after another, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from elman.engines import registry
from elman.engines.base import Arrangement, Job
from elman.engines.call import Cotangents
from elman.engines.forks import own_threads
from elman.engines.together import Together
from elman.errors import ElmanError
from elman.passes.digest import digest
from elman.tuning.agreement import disagreement
from elman.tuning.choose import Choice
from elman.tuning.contest import Evidence, time_candidates
from elman.tuning.decisions import Key, collect_evidence, recall, receivers, remember
from elman.tuning.machine import machine_facts, verifying_facts
from elman.tuning.request import bucket
from elman.tuning.trial import isolate, make_trial, synchronize

APART, AT_ONCE = "apart", "together"
_LEAST = 48  # steps that are timed: with fewer, a layer hardly gets behind another
_SURE = 0.8  # share of the time forecast under which they run at once where nothing is benchmarked


def choose_together(
    jobs: Sequence[Job],
    choices: Sequence[Choice],
    steps: int,
    batch: int,
    arrangement: Arrangement,
    pinned: str | None = None,
) -> Choice | None:
    """Choose how the layers of a stack, or two directions, run: one after another or at once.

    Args:
        jobs: one per kernel, as :class:`Together` takes them.
        choices: of each layer by itself.
        steps: T.
        batch: B.
        arrangement: of the jobs.
        pinned: the schedule that an earlier process used, to be used again.

    Returns:
        The choice, its schedule ``isolate`` or ``together``; None where autograd must see through
        some kernels and not through others.
    """
    kinds = {choice.kernel.differentiable for choice in choices}
    if len(kinds) > 1:
        return None
    members = [choice.kernel for choice in choices]
    sequential = Together(members, arrangement)
    engine = choices[0].engine
    single_engine = {choice.engine for choice in choices} == {engine}
    offered = (
        registry.find(engine).together(jobs, members, steps, batch, arrangement)
        if single_engine
        else None
    )
    if offered is None:
        return Choice(engine, APART, sequential, "only")
    joint, share = offered
    kernels = {AT_ONCE: joint, APART: sequential}
    timed_steps = min(steps, _LEAST)
    with own_threads():
        run = _Step(jobs, timed_steps, batch, arrangement)
        refusal = _disagreement(run, jobs, kernels, timed_steps)
    if refusal is not None:
        return Choice(engine, APART, sequential, "benchmarked", {}, {AT_ONCE: refusal})
    forecast = (AT_ONCE, APART) if share < _SURE else (APART, AT_ONCE)
    if pinned in kernels:
        return Choice(engine, pinned, kernels[pinned], "pinned")
    if torch.are_deterministic_algorithms_enabled():
        return Choice(engine, forecast[0], kernels[forecast[0]], "deterministic")

    def benchmark(evidence: Evidence) -> dict[str, str]:
        calls = {name: partial(run, kernels[name]) for name in forecast}
        with own_threads():
            return time_candidates(calls, evidence, timed_steps * batch, {engine})

    evidence, failed = collect_evidence(
        _key(jobs, choices, steps, batch, arrangement), forecast, benchmark
    )
    best = evidence.best(forecast)
    times = {name: evidence.time(name) * batch for name in evidence.samples}
    sure = evidence.sure(forecast, best)
    origin = "remembered" if failed is None else "benchmarked"
    return Choice(engine, best, kernels[best], origin, times, failed or {}, sure)


def sends_by_layer(jobs: Sequence[Job]) -> bool:
    """Whether each layer of a stack is a node of autograd of its own, so that its gradients are
    sent to the other workers while the backward of the layers below runs.

    Args:
        jobs: one per layer.
    """
    return receivers() > 1 and any(job.spec.wants for job in jobs)


def _key(
    jobs: Sequence[Job], choices: Sequence[Choice], steps: int, batch: int, arrangement: Arrangement
) -> Key:
    spec = jobs[0].spec
    return {
        "jobs": [
            [job.name, digest(job.pair.source), [list(dim) for dim in job.spec.dims]]
            for job in jobs
        ],
        "wants": [[sorted(job.spec.wants), job.spec.training] for job in jobs],
        "schedules": [[choice.engine, choice.schedule] for choice in choices],
        "beside": arrangement.directions,
        "dtype": spec.dtype,
        "precision": spec.precision,
        "options": spec.options.to_json(),
        "T": bucket(steps),
        "B": bucket(batch),
        "machine": machine_facts(spec.device),
    }


def _disagreement(
    run: _Step, jobs: Sequence[Job], kernels: dict[str, Together], steps: int
) -> str | None:
    """Compare the kernels at once with one after another: None if they agree, else the reason. Once
    per program, as in ``verification``."""
    programs = [kernel.fingerprint() for kernel in kernels[APART].kernels]
    mark = {"verified": programs, "as": AT_ONCE, "beside": kernels[APART].arrangement.directions}
    mark |= verifying_facts()
    if None not in programs and recall(mark) == {"agrees": True}:
        return None
    expected = run(kernels[APART])
    try:
        off = disagreement(run(kernels[AT_ONCE]), expected, jobs[0].spec.dtype, steps)
    except (ElmanError, RuntimeError) as error:
        return f"failed: {error}"
    if off is not None:
        return f"does not agree with one after another: {off}"
    if None not in programs:
        remember(mark, {"agrees": True})
    return None


class _Step:
    """A training step on random data, or a forward if none of the jobs is for training."""

    def __init__(
        self, jobs: Sequence[Job], steps: int, batch: int, arrangement: Arrangement
    ) -> None:
        trials = [make_trial(job, steps, batch, seed) for seed, job in enumerate(jobs)]
        self._call = arrangement.joined([trial.call for trial in trials])
        ends = [trial.cotangents.output for trial in trials]
        d_output = torch.cat([d for d in ends if d is not None], -1)
        self._cotangents = Cotangents(
            d_output if arrangement.directions else ends[-1], (None,) * len(self._call.states)
        )
        self._training = any(job.spec.training for job in jobs)
        self._device = jobs[0].spec.device

    def __call__(self, kernel: Together) -> dict[str, Tensor]:
        """All results by name."""
        with isolate(self._device), torch.no_grad():
            result = kernel.forward(self._call)
            results = {"output": result.output}
            results |= {f"last {k}": end for k, end in enumerate(result.last)}
            if self._training:
                gradients = kernel.backward(self._call, result.saved, self._cotangents, False)
                grads = enumerate(gradients.tensors)
                results |= {f"gradient {k}": d for k, d in grads if d is not None}
        synchronize(self._device)
        return results
