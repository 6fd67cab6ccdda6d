"""Engines that can run a job, and a cache of their kernels."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from elman.engines import registry
from elman.engines.base import Engine, Job, Kernel
from elman.engines.precision import BF16
from elman.errors import ElmanError, EngineError, InternalError, warn_once

EngineSchedule = tuple[str, str]  # engine, schedule

MOST_KERNELS = 1024  # kernels in this cache; modules and callers keep their own references
_kernels: dict[tuple[Job, str, str], Kernel] = {}  # by job, engine and schedule; oldest first
_kernels_lock = threading.Lock()


def label(candidate: EngineSchedule) -> str:
    """``c``, or ``c:schedule``."""
    return ":".join(part for part in candidate if part)


def engine_for(name: str, job: Job) -> Engine | str:
    """The engine of a name if it can run a job, else why not. Raises EngineError: there is no
    engine of that name."""
    reason = registry.elsewhere(name, job.spec.device)
    if reason is not None:
        return reason
    engine = registry.installed(name)
    if isinstance(engine, str):
        return engine
    if not job.graph.states:
        return "it has no state: elman.Recurrent gives it an idle one"
    if required := job.spec.options.without - engine.leaves_out:
        return f"it cannot leave out {', '.join(sorted(required))}"
    if job.spec.precision == BF16 and (reason := engine.lacks_bf16(job.spec.options)):
        return reason
    return engine.supports(job) or engine


def first_engine(job: Job, able: Callable[[Engine], bool]) -> str | None:
    """The first engine that can run a job and has some ability, or None."""
    for name in registry.names():
        engine = engine_for(name, job)
        if not isinstance(engine, str) and able(engine):
            return name
    return None


def refusal(name: str, job: Job) -> str | None:
    """The reason why an engine cannot run a job; None if it can."""
    engine = engine_for(name, job)
    return engine if isinstance(engine, str) else None


@contextmanager
def _failures_of(name: str, job: Job) -> Generator[None]:
    """Context that reports any exception of an engine other than a refusal as a bug in elman: by a
    warning, since ``auto`` goes on without the engine, and as an InternalError."""
    try:
        yield
    except (ElmanError, OSError, MemoryError):
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        reason = " ".join([f"{type(error).__name__} at {where}", *str(error).splitlines()[:1]])
        text = f"engine {name} cannot run {job.name}, by a bug in elman: {reason}"
        warn_once(f"{text}; please report it, with the cell")
        raise InternalError(text) from error


def kernel_of(job: Job, name: str, schedule: str = "") -> Kernel:
    """Get a kernel of one engine and schedule from the cache, or compile it. Raises EngineError:
    the engine cannot run the job; the text says why."""
    key = (job, name, schedule)
    kernel = _kernels.get(key)
    if kernel is None:
        engine = engine_for(name, job)
        if isinstance(engine, str):
            raise EngineError(f"engine {name} cannot run {job.name}: {engine}")
        with _failures_of(name, job):
            kernel = engine.compile(job, schedule or None)
        with _kernels_lock:
            kernel = _kernels.setdefault(key, kernel)  # another thread may have compiled it, too
            while len(_kernels) > MOST_KERNELS:
                del _kernels[next(iter(_kernels))]
    return kernel


def release() -> None:
    """Drop the cached kernels, and free the memory that engines keep for further calls."""
    with _kernels_lock:
        _kernels.clear()
    for name in registry.names():
        engine = registry.loaded(name)
        if engine is not None:
            engine.release()


def candidates(
    job: Job, names: tuple[str, ...], steps: int, batch: int
) -> tuple[list[EngineSchedule], dict[str, str]]:
    """Engines and schedules that can run a job, best forecast first, and why the others cannot.

    If there are several engines, those without a chance are left out, with the reason.
    """
    able: list[EngineSchedule] = []
    refusals: dict[str, str] = {}
    for name in names:
        try:
            with _failures_of(name, job):
                engine = engine_for(name, job)
                reason = engine if isinstance(engine, str) else None
                if not isinstance(engine, str) and len(names) > 1:
                    reason = engine.prune_reason(job, steps, batch)
                if isinstance(engine, str) or reason is not None:
                    refusals[name] = reason or ""
                else:
                    schedules = engine.schedules(job, steps, batch)
                    able.extend((name, schedule) for schedule in schedules)
        except InternalError as error:
            refusals[name] = str(error)
    return able, refusals
