"""Explained layers: the engines that can run them, the choice, and where the time of a call
goes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from elman import compiler
from elman.engines import registry
from elman.engines.base import WAITING, Job
from elman.engines.precision import BF16
from elman.frontend.cell import Cell
from elman.ir.graph import Graph
from elman.ir.pair import Pair
from elman.plan.build import program
from elman.plan.program import Program
from elman.plan.spec import Spec
from elman.tuning.choose import Choice, choose
from elman.tuning.kernels import candidates, label
from elman.tuning.request import Rule
from elman.tuning.trial import phases, shares

LayerChoice = Choice | dict[str, str]  # or, where nothing was benchmarked, the refusals
WHY = {  # Choice.why -> where a choice comes from, in words
    "named": "asked for by name",
    "only": "the only one that can",
    "benchmarked": "benchmarked now",
    "near": "benchmarked at the most similar sizes",
    "remembered": "benchmarked before, remembered",
    "deterministic": "the first that can; deterministic algorithms forbid benchmarking",
    "pinned": "pinned by a checkpoint",
}


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer in one direction, with the sizes and options of its call.

    Attributes:
        name: suffix of its weights' names, ``l0``, ``l1_reverse``; the cell's name for a cell.
        cell: its formula.
        spec: sizes, dtype, device, wanted gradients.
        steps, batch: T and B.
        engine: the requested one, a name or ``auto``.
        elsewhere: why torch's own layer runs instead, if it does.
        choice: the one made already, if any.
        checkpoint: steps between two kept states; 0: everything is kept.
        group: number of the layers that run together with it.
        rules: how options change its step; that of a cell that draws random numbers in training.
        unrounded: why operands of products are not rounded to bfloat16, though that was asked for.
    """

    name: str
    cell: Cell
    spec: Spec
    steps: int
    batch: int
    engine: str = "auto"
    elsewhere: str | None = None
    choice: Choice | None = None
    checkpoint: int = 0
    group: int = 0
    rules: tuple[Rule, ...] = ()
    unrounded: str | None = None

    @property
    def graph(self) -> Graph:
        """The formula as it runs."""
        return compiler.graph_of(self.cell, self.rules)

    @property
    def pair(self) -> Pair:
        """The canonical step of the layer, and the adjoint."""
        return compiler.pair_of(self.cell, self.rules)

    @property
    def job(self) -> Job:
        """Job of the layer for an engine."""
        return compiler.job(self.cell, self.spec, self.rules)

    @property
    def at_once(self) -> int:
        """Steps per call of its engine."""
        return min(self.steps, self.checkpoint or self.steps)


def choice_of(layer: Layer, measure: bool, again: bool = False) -> LayerChoice:
    """Choose the kernel of a layer, benchmarked anew if asked for; where nothing may be
    benchmarked, the refusals of engines."""
    if layer.elsewhere is not None:
        return {}
    if layer.choice is not None:
        return layer.choice
    of = layer.job
    if measure and layer.cell.states:
        return choose(of, layer.at_once, layer.batch, layer.engine, again=again)
    return candidates(of, engine_names(layer), layer.at_once, layer.batch)[1]


def engine_names(layer: Layer) -> tuple[str, ...]:
    """Names of the engines that a layer may run on."""
    return registry.names() if layer.engine == "auto" else (layer.engine,)


def program_of(layer: Layer, choice: LayerChoice) -> Program:
    """Program of the kernel that runs a layer; planned anew where the kernel has none."""
    plan = getattr(choice.kernel, "program", None) if isinstance(choice, Choice) else None
    return plan or program(layer.pair, layer.spec)


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


def candidates_of(layer: Layer, choice: LayerChoice) -> Iterable[Candidate]:
    """Every engine, timed, able or refused."""
    if layer.elsewhere is not None:
        yield Candidate(layer.name, "torch", None, None, True)
        for name in registry.names():
            yield Candidate(layer.name, name, None, layer.elsewhere, False)
        return
    if isinstance(choice, Choice):
        winner, refusals = label((choice.engine, choice.schedule)), choice.refusals
        times = dict(sorted(choice.medians_s.items(), key=lambda item: item[1]))
        for name in times or (winner,):
            yield Candidate(layer.name, name, times.get(name), None, name == winner)
        if winner not in times and times:
            yield Candidate(layer.name, winner, None, None, True)
    else:
        of = layer.job
        able, refusals = candidates(of, engine_names(layer), layer.at_once, layer.batch)
        for candidate in able:
            yield Candidate(layer.name, label(candidate), None, None, False)
    for name, reason in refusals.items():
        yield Candidate(layer.name, name, None, reason, False)


def engine_texts(choices: Sequence[tuple[Layer, LayerChoice]], measure: bool) -> Iterable[str]:
    """Lines on the engine of each layer and, if measuring is allowed, the time of a call by
    phase."""
    for layer, choice in choices:
        yield from _engine_lines(layer, choice)
        if measure and isinstance(choice, Choice):
            yield from _phase_lines(layer, choice)


def _phase_lines(layer: Layer, choice: Choice) -> Iterable[str]:
    of = layer.job
    times = phases(of, choice.engine, choice.schedule, layer.steps, layer.batch)
    if times:
        parts = shares(times)
        waiting = parts.pop(WAITING)
        yield f"  where the time of a call goes (besides, threads wait {waiting:.0%} of the time):"
        yield from (f"    {share:5.1%}  {name}" for name, share in parts.items())


def _engine_lines(layer: Layer, choice: LayerChoice) -> Iterable[str]:
    spec = layer.spec
    sizes = f"{spec.dtype} on {spec.device}, T = {layer.steps}, B = {layer.batch}"
    if layer.elsewhere is not None:
        yield f"{layer.name} ({sizes}): torch's own layer, because of {layer.elsewhere}"
        return
    if isinstance(choice, Choice):
        origin = WHY[choice.why]
        unsure = "" if choice.sure else "; not sure yet: the next process goes on benchmarking"
        yield f"{layer.name} ({sizes}): engine {choice.engine}, {origin}{unsure}"
        yield from (f"  {line}" for line in _kernel_lines(layer, choice))
    else:
        yield f"{layer.name} ({sizes}): nothing was benchmarked"
    if spec.precision == BF16:
        yield "  operands of products are rounded to bfloat16; sums and all else are float32"
    elif layer.unrounded is not None:
        yield f"  operands of products are not rounded to bfloat16: {layer.unrounded}"
    candidates = list(candidates_of(layer, choice))
    best = min((candidate.seconds for candidate in candidates if candidate.seconds), default=None)
    for candidate in candidates:
        if candidate.refusal is not None:
            yield f"  {candidate.name:<12} no: {candidate.refusal}"
        elif candidate.seconds is not None and best is not None:
            mark = "  <- runs" if candidate.chosen else ""
            slower = candidate.seconds / best
            words = "fastest" if slower == 1 else f"{slower:.3g} times slower"
            yield f"  {candidate.name:<12} {time_text(candidate.seconds):>8} a step  {words}{mark}"
        elif not isinstance(choice, Choice):
            yield f"  {candidate.name:<12} can run"


def _kernel_lines(layer: Layer, choice: Choice) -> Iterable[str]:
    facts = {k: v for k, v in choice.kernel.describe().items() if k != "engine" and v != ""}
    schedule = getattr(choice.kernel, "schedule", None)
    if callable(schedule):
        facts["schedule"] = _schedule_text(choice, schedule(layer.at_once, layer.batch))
    if facts:
        yield ", ".join(f"{name} {value}" for name, value in facts.items())
    counters = choice.kernel.counters()
    if counters:
        yield ", ".join(f"{name} {count}" for name, count in counters.items())
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


def time_text(seconds: float) -> str:
    """A duration in milliseconds or microseconds."""
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def summary_of(choices: Sequence[tuple[Layer, LayerChoice]]) -> Iterable[str]:
    """Two lines: which engine runs the layers, and how long a call takes beside torch's layer."""
    names = [
        f"{layer.name} on {choice.engine}" if isinstance(choice, Choice)
        else f"{layer.name} on torch's own layer" if layer.elsewhere is not None
        else f"{layer.name} not chosen yet"
        for layer, choice in choices
    ]  # fmt: skip
    yield f"engine  {', '.join(names)}"
    step_s = seconds = torchs = 0.0
    for layer, choice in choices:
        medians_s = choice.medians_s if isinstance(choice, Choice) else {}
        name = label((choice.engine, choice.schedule)) if isinstance(choice, Choice) else ""
        if name not in medians_s:
            why = ""
            if isinstance(choice, Choice) and not medians_s:
                why = f": {choice.engine} was the only choice"
            yield f"time    not measured{why}"
            return
        step_s += medians_s[name]
        seconds += layer.steps * medians_s[name]
        torchs += medians_s.get("aten", math.nan)
    layer = choices[0][0]
    kind = "a training step" if layer.spec.training else "a call"
    ratio = (
        "" if math.isnan(torchs) else f", {torchs / step_s:.3g} times as fast as torch.nn's layer"
    )
    yield f"time    {time_text(seconds)} for {kind} of T = {layer.steps}, B = {layer.batch}{ratio}"
