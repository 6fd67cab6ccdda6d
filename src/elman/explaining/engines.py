"""Who could run a layer, who does, and where the time of a call goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from elman.engines import registry
from elman.engines.base import WAITING
from elman.explaining.layers import WHY, Layer, Picked, asked
from elman.tuning.choose import Choice
from elman.tuning.kernels import candidates, label
from elman.tuning.phases import phases, shares


@dataclass(frozen=True)
class Candidate:
    """One engine (with one schedule) for one layer.

    Attributes:
        layer: which layer.
        name: ``c``, ``c:units``, ``aten`` …
        seconds: forward and backward as measured, at T and B or on fewer steps; None: not timed.
        refusal: why it does not run this layer; None if it can.
        chosen: whether it runs the layer.
    """

    layer: str
    name: str
    seconds: float | None
    refusal: str | None
    chosen: bool


def candidates_of(layer: Layer, choice: Picked) -> Iterable[Candidate]:
    """Every engine, timed, able or refused."""
    if layer.elsewhere is not None:
        yield Candidate(layer.name, "torch", None, None, True)
        for name in registry.names():
            yield Candidate(layer.name, name, None, layer.elsewhere, False)
        return
    if isinstance(choice, Choice):
        chosen, refusals = label((choice.engine, choice.schedule)), choice.refusals
        times = dict(sorted(choice.medians_s.items(), key=lambda item: item[1]))
        for name in times or (chosen,):
            yield Candidate(layer.name, name, times.get(name), None, name == chosen)
        if chosen not in times and times:
            yield Candidate(layer.name, chosen, None, None, True)
    else:
        of = layer.job
        able, refusals = candidates(of, asked(layer), layer.at_once, layer.batch)
        for candidate in able:
            yield Candidate(layer.name, label(candidate), None, None, False)
    for name, reason in refusals.items():
        yield Candidate(layer.name, name, None, reason, False)


def engine_texts(chosen: Sequence[tuple[Layer, Picked]], measure: bool) -> Iterable[str]:
    """Who runs the layers and, if something may be measured, where the time of a call goes."""
    for layer, choice in chosen:
        yield from _engine_lines(layer, choice)
        if measure and isinstance(choice, Choice):
            yield from _phase_lines(layer, choice)


def _phase_lines(layer: Layer, choice: Choice) -> Iterable[str]:
    of = layer.job
    taken = phases(of, choice.engine, choice.schedule, layer.steps, layer.batch)
    if taken:
        found = shares(taken)
        waiting = found.pop(WAITING)
        yield f"  where the time of a call goes (besides, threads wait {waiting:.0%} of the time):"
        yield from (f"    {share:5.1%}  {name}" for name, share in found.items())


def _engine_lines(layer: Layer, choice: Picked) -> Iterable[str]:
    spec = layer.spec
    where = f"{spec.dtype} on {spec.device}, T = {layer.steps}, B = {layer.batch}"
    if layer.elsewhere is not None:
        yield f"{layer.name} ({where}): torch's own layer, because of {layer.elsewhere}"
        return
    if isinstance(choice, Choice):
        why = WHY[choice.why]
        unsure = "" if choice.sure else "; not sure yet: the next process goes on benchmarking"
        yield f"{layer.name} ({where}): engine {choice.engine}, {why}{unsure}"
        yield from (f"  {line}" for line in _kernel_lines(layer, choice))
    else:
        yield f"{layer.name} ({where}): nothing was benchmarked"
    candidates = list(candidates_of(layer, choice))
    best = min((one.seconds for one in candidates if one.seconds), default=None)
    for one in candidates:
        if one.refusal is not None:
            yield f"  {one.name:<12} no: {one.refusal}"
        elif one.seconds is not None and best is not None:
            mark = "  <- runs" if one.chosen else ""
            yield f"  {one.name:<12} {one.seconds / best:5.2f}x  {_time(one.seconds)}{mark}"
        elif not isinstance(choice, Choice):
            yield f"  {one.name:<12} can"


def _kernel_lines(layer: Layer, choice: Choice) -> Iterable[str]:
    facts = {k: v for k, v in choice.kernel.describe().items() if k != "engine" and v != ""}
    schedule = getattr(choice.kernel, "schedule", None)
    if callable(schedule):
        facts["schedule"] = _schedule_text(choice, schedule(layer.at_once, layer.batch))
    if facts:
        yield ", ".join(f"{name} {value}" for name, value in facts.items())
    counted = choice.kernel.counters()
    if counted:
        yield ", ".join(f"{name} {count}" for name, count in counted.items())
    if choice.engine == "reference":
        yield "the step by step oracle: correct, slow, for whatever no other engine can run"
    elif choice.engine == "aten":
        yield "torch's own kernel computes exactly this formula"


def _schedule_text(choice: Choice, schedule: Any) -> str:
    """A schedule in words: who shares a step, how many threads, how many steps per chunk."""
    split = getattr(schedule, "split", None)
    names = ("one thread", "samples shared", "units shared")
    words = names[split] if isinstance(split, int) and split < len(names) else str(split)
    name = f"{choice.schedule} (" if choice.schedule else "("
    return f"{name}{words}, {schedule.workers} threads, chunks of {schedule.chunk} steps)"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
