"""The choice of engine and schedule for one job and one size class of T and B."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from elman.engines import registry
from elman.engines.base import Engine, Job, Kernel
from elman.errors import ElmanError, EngineError
from elman.passes.digest import digest
from elman.tuning import cache
from elman.tuning.compete import TIE, compete
from elman.tuning.facts import machine_facts

Candidate = tuple[str, str]  # engine, schedule

_kernels: dict[tuple[Job, str, str], Kernel] = {}


@dataclass(frozen=True, eq=False)
class Choice:
    """What runs, and why.

    Attributes:
        engine, schedule: names; the schedule is ``""`` where the engine has only one.
        kernel: ready to call.
        why: named, only, measured, remembered, near, deterministic, pinned: where the choice comes
            from (near: measured at other sizes).
        medians_s: (s) per candidate, forward and backward at the sizes measured.
        refusals: why the other engines do not run this.
    """

    engine: str
    schedule: str
    kernel: Kernel
    why: str
    medians_s: Mapping[str, float] = field(default_factory=dict)
    refusals: Mapping[str, str] = field(default_factory=dict)


def octave(size: int) -> int:
    """The size class of T or B: k for sizes in (2^(k-1), 2^k]."""
    return (size - 1).bit_length()


def label(candidate: Candidate) -> str:
    """``c``, or ``c:schedule``."""
    return ":".join(part for part in candidate if part)


def engine_for(name: str, job: Job) -> Engine | str:
    """The engine of a name if it can run a job, else why not.

    Raises:
        EngineError: there is no engine of that name.
    """
    reason = registry.elsewhere(name, job.spec.device)
    if reason is not None:
        return reason
    try:
        engine = registry.find(name)
    except ModuleNotFoundError as missing:
        absent = missing.name or ""
        if absent.startswith("elman") and not f"elman.engines.{name}.engine".startswith(absent):
            raise  # a mistake of ours, not a part that was left out
        return f"{absent} is not part of this installation"
    return engine.supports(job) or engine


def refusal(name: str, job: Job) -> str | None:
    """None if an engine can run a job, else the reason why not."""
    engine = engine_for(name, job)
    return engine if isinstance(engine, str) else None


def kernel_of(job: Job, name: str, schedule: str = "") -> Kernel:
    """The kernel of one engine and schedule, made once per process.

    Raises:
        EngineError: the engine cannot run the job; the text says why.
    """
    key = (job, name, schedule)
    kernel = _kernels.get(key)
    if kernel is None:
        engine = engine_for(name, job)
        if isinstance(engine, str):
            raise EngineError(f"engine {name} cannot run {job.name}: {engine}")
        kernel = _kernels[key] = engine.compile(job, schedule or None)
    return kernel


def candidates(
    job: Job, names: tuple[str, ...], steps: int, batch: int
) -> tuple[list[Candidate], dict[str, str]]:
    """Who can run a job, best guess first, and why the others cannot.

    Of several, those that have no chance are left out, with the reason.
    """
    able: list[Candidate] = []
    refusals: dict[str, str] = {}
    for name in names:
        engine = engine_for(name, job)
        reason = engine if isinstance(engine, str) else None
        if not isinstance(engine, str) and len(names) > 1:
            reason = engine.hopeless(job, steps, batch)
        if isinstance(engine, str) or reason is not None:
            refusals[name] = reason or ""
        else:
            able.extend((name, schedule) for schedule in engine.schedules(job, steps, batch))
    return able, refusals


def choose(
    job: Job, steps: int, batch: int, engine: str = "auto", *, again: bool = False
) -> Choice:
    """Choose who runs a job.

    A named engine runs or raises. ``auto`` measures those that can run — on random data of the
    given sizes, forward and backward — after each has agreed with the oracle, and remembers the
    winner on disk. ``reference`` runs only what no other engine can. Under deterministic algorithms
    nothing is measured: the first engine that can run does.

    Args:
        job: what is to run.
        steps: T.
        batch: B.
        engine: a name, or ``auto``.
        again: measure whatever is remembered.

    Raises:
        EngineError: a named engine cannot run the job.
    """
    if engine == "auto":
        names = tuple(name for name in registry.names() if name != "reference")
    else:
        names = (engine,)
    able, refusals = candidates(job, names, steps, batch)
    if engine != "auto" and not able:
        raise EngineError(f"engine {engine} cannot run {job.name}: {refusals[engine]}")
    if torch.are_deterministic_algorithms_enabled() or (engine != "auto" and len(able) == 1):
        why = "named" if engine != "auto" else "deterministic"
        return _first(job, able, why, refusals, engine != "auto")
    if not able:
        return _first(job, able, "only", refusals, False)
    key = _key(job, steps, batch, able)
    found = None if again else _remembered(job, key, able, refusals)
    return found or _measured(job, steps, batch, able, refusals, engine != "auto", key)


def _first(
    job: Job, able: list[Candidate], why: str, refusals: dict[str, str], named: bool
) -> Choice:
    for name, schedule in able:
        try:
            return Choice(name, schedule, kernel_of(job, name, schedule), why, {}, refusals)
        except ElmanError as error:
            if named:
                raise
            refusals[label((name, schedule))] = str(error)
    return Choice("reference", "", kernel_of(job, "reference"), "only", {}, refusals)


def _remembered(
    job: Job, key: cache.Key, able: list[Candidate], refusals: dict[str, str]
) -> Choice | None:
    """What an earlier measurement found, if it can be believed and still be made."""
    found = _believed(cache.recall(key), able)
    if found is None:
        return None
    name, schedule, medians, told = found
    try:
        kernel = kernel_of(job, name, schedule)
    except ElmanError:  # what could be compiled then cannot be compiled now
        return None
    return Choice(name, schedule, kernel, "remembered", medians, refusals | told)


def _measured(
    job: Job,
    steps: int,
    batch: int,
    able: list[Candidate],
    refusals: dict[str, str],
    named: bool,
    key: cache.Key,
) -> Choice:
    """Measure all candidates, and remember the winner unless the machine was not quiet."""
    kernels: dict[str, Kernel] = {}
    named_by: dict[str, Candidate] = {}
    for candidate in able:
        try:
            kernels[label(candidate)] = kernel_of(job, *candidate)
            named_by[label(candidate)] = candidate
        except ElmanError as error:
            if named:
                raise
            refusals[label(candidate)] = str(error)
    medians, wrong = compete(job, kernels, kernel_of(job, "reference"), steps, batch)
    refusals |= wrong
    if not medians:
        if named:
            reasons = "; ".join(f"{who}: {reason}" for who, reason in wrong.items())
            raise EngineError(f"no schedule of the engine agrees with the reference: {reasons}")
        return _first(job, [], "only", refusals, False)
    best = min(medians.values())
    # the first that is as good as the best: a tie must not be decided by the noise of one run
    winner = next(who for who in kernels if medians.get(who, math.inf) <= TIE * best)
    name, schedule = named_by[winner]
    value = {"engine": name, "schedule": schedule, "medians_s": medians, "refusals": wrong}
    if not any(registry.find(engine).disturbed() for engine, _ in named_by.values()):
        cache.remember(key, value)
    return Choice(name, schedule, kernels[winner], "measured", medians, refusals)


def _key(job: Job, steps: int, batch: int, able: list[Candidate]) -> cache.Key:
    spec = job.spec
    return {
        "cell": job.name,
        "digest": digest(job.pair.step),
        "dims": [list(dim) for dim in spec.dims],
        "dtype": spec.dtype,
        "device": spec.device,
        "wants": sorted(spec.wants),
        "training": spec.training,
        "tape": spec.tape,
        "T": octave(steps),
        "B": octave(batch),
        "candidates": [list(candidate) for candidate in able],
        "machine": machine_facts(spec.device),
    }


def _believed(
    value: dict[str, Any] | None, able: list[Candidate]
) -> tuple[str, str, dict[str, float], dict[str, str]] | None:
    """What was stored, if it can be true: a candidate of now, finite times, texts."""
    if value is None:
        return None
    name, schedule = value.get("engine"), value.get("schedule")
    medians, told = value.get("medians_s"), value.get("refusals")
    if (name, schedule) not in able or not isinstance(medians, dict) or not isinstance(told, dict):
        return None
    times = [seconds for seconds in medians.values() if isinstance(seconds, float)]
    if len(times) != len(medians) or not all(0.0 < seconds < 3600.0 for seconds in times):
        return None
    if not all(isinstance(reason, str) for reason in told.values()):
        return None
    return str(name), str(schedule), medians, told
