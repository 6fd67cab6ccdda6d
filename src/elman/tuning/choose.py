"""The choice of engine and schedule for one job and one size bucket of T and B."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from elman.engines.base import Job, Kernel
from elman.engines.forks import own_threads
from elman.engines.registry import names as engine_names
from elman.errors import DisagreementError, ElmanError, EngineError, warn_once
from elman.passes.digest import digest
from elman.tuning.contest import Evidence, time_candidates, trial_size
from elman.tuning.decisions import Key, collect_evidence
from elman.tuning.kernels import EngineSchedule, candidates, kernel_of, label
from elman.tuning.machine import machine_facts
from elman.tuning.request import bucket
from elman.tuning.trial import make_trial
from elman.tuning.verification import compile_verified

_CAUTIOUS = ("aten",)  # wins by several quiet samples alone


@dataclass(frozen=True, eq=False)
class Choice:
    """The kernel that runs a job, and why.

    Attributes:
        engine, schedule: names; the schedule is ``""`` where the engine has only one.
        kernel: ready to call.
        why: named, only, benchmarked, remembered, near, deterministic, pinned: where the choice
            comes from (near: benchmarked at other sizes).
        medians_s: (s) per candidate: a step of a sample, forward and backward.
        refusals: why the other engines do not run this.
        sure: whether more samples would hardly change it; if not, the next process goes on
            benchmarking.
    """

    engine: str
    schedule: str
    kernel: Kernel
    why: str
    medians_s: Mapping[str, float] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)
    sure: bool = True


def choose(
    job: Job, steps: int, batch: int, engine: str = "auto", *, again: bool = False
) -> Choice:
    """Choose the engine and the schedule of a job.

    A named engine runs or raises. ``auto`` benchmarks those that can run — on random data of the
    given sizes, forward and backward — and remembers the samples on disk, for later processes
    to add to until the choice is sure. No kernel is used before it has agreed with the oracle.
    ``reference`` runs only what no other engine can, with a warning. Under deterministic algorithms
    nothing is benchmarked: the first engine that can run does.

    Args:
        job: what is to run.
        steps: T.
        batch: B.
        engine: a name, or ``auto``.
        again: benchmark anew, whatever is remembered.

    Raises:
        EngineError: a named engine cannot run the job.
        DisagreementError: a named engine computes something else than the oracle.
    """
    by_name = engine != "auto"
    names = (engine,) if by_name else tuple(name for name in engine_names() if name != "reference")
    able, refusals = candidates(job, names, steps, batch)
    if by_name and not able:
        raise EngineError(f"engine {engine} cannot run {job.name}: {refusals[engine]}")
    if torch.are_deterministic_algorithms_enabled() or len(able) < 2:
        origin = "named" if by_name else "deterministic" if len(able) > 1 else "only"
        return _choose_first(job, able, origin, refusals, by_name)
    order = {label(candidate): candidate for candidate in able}
    evidence, failed = collect_evidence(
        _key(job, steps, batch, able),
        list(order),
        lambda evidence: _benchmark(job, steps, batch, order, evidence),
        _CAUTIOUS,
        again,
    )
    refusals |= failed or {}
    remaining = [tag for tag in order if tag not in refusals]
    while remaining:
        best = evidence.best(remaining, _CAUTIOUS)
        name, schedule = order[best]
        try:
            kernel = compile_verified(job, name, schedule)
        except ElmanError as error:
            refusals[best] = refusal_reason(error)
            remaining.remove(best)
            continue
        times = {tag: evidence.time(tag) * batch for tag in remaining if tag in evidence.samples}
        sure = evidence.sure(remaining, best, _CAUTIOUS)
        origin = "remembered" if failed is None else "benchmarked"
        return Choice(name, schedule, kernel, origin, times, refusals, sure)
    return _choose_first(job, able if by_name else [], "only", refusals, by_name)


def _benchmark(
    job: Job, steps: int, batch: int, order: Mapping[str, EngineSchedule], evidence: Evidence
) -> dict[str, str]:
    """Time the candidates on random data; returns the reasons of those that cannot run."""
    T, B, long = trial_size(job, steps, batch)
    refusals: dict[str, str] = {}
    runs: dict[str, Callable[[], object]] = {}
    with own_threads():
        trial = make_trial(job, T, B)
    for name, candidate in order.items():
        try:
            kernel = kernel_of(job, *candidate)
        except ElmanError as error:
            refusals[name] = refusal_reason(error)
        else:
            runs[name] = partial(trial.run, kernel, whole=True)
    with own_threads():
        late = time_candidates(runs, evidence, T * B, {name for name, _ in order.values()}, long)
    return refusals | late


def refusal_reason(error: ElmanError) -> str:
    """An error as the reason of a refusal."""
    return error.reason if isinstance(error, DisagreementError) else str(error)


def _choose_first(
    job: Job, able: list[EngineSchedule], origin: str, refusals: dict[str, str], by_name: bool
) -> Choice:
    """Choose the first candidate that agrees with the oracle; without one, the oracle itself.
    Raises ElmanError: an engine was named, and it fails or disagrees."""
    for name, schedule in able:
        try:
            return Choice(
                name, schedule, compile_verified(job, name, schedule), origin, {}, refusals
            )
        except ElmanError as error:
            if by_name:
                raise
            refusals[label((name, schedule))] = refusal_reason(error)
    reasons = _summarise_refusals(refusals)
    text = f"{job.name} runs step by step on engine reference, which is slow: {reasons}"
    warn_once(text, f"reference {job.name} {job.spec.dtype} {job.spec.device}")
    return Choice("reference", "", kernel_of(job, "reference"), "only", {}, refusals)


def _summarise_refusals(refusals: Mapping[str, str]) -> str:
    """Summarise why no engine runs, once per engine: failures before exclusions."""
    failed = [name for name in refusals if ":" in name]
    reasons: dict[str, str] = {}
    for name in (*failed, *refusals):
        reasons.setdefault(name.partition(":")[0], refusals[name])
    return "; ".join(f"{engine}: {reason}" for engine, reason in reasons.items())


def _key(job: Job, steps: int, batch: int, able: list[EngineSchedule]) -> Key:
    spec = job.spec
    return {
        "cell": job.name,
        "digest": digest(job.pair.source),
        "dims": [list(dim) for dim in spec.dims],
        "dtype": spec.dtype,
        "precision": spec.precision,
        "device": spec.device,
        "wants": sorted(spec.wants),
        "training": spec.training,
        "options": spec.options.to_json(),
        "T": bucket(steps),
        "B": bucket(batch),
        "candidates": [list(candidate) for candidate in able],
        "machine": machine_facts(spec.device),
    }
