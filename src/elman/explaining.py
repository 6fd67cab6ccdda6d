"""Every stage of a cell or a module as text: formula, steps, program, and who runs it."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from elman import compiler
from elman.autodiff.structure import structure
from elman.engines import registry
from elman.engines.base import WAITING, Job
from elman.errors import InputError, diagnostic
from elman.frontend.cell import Cell
from elman.ir.graph import Graph
from elman.ir.pair import Pair, Step
from elman.ir.printer import show_backward, show_graph, show_step
from elman.passes.draws import expected
from elman.passes.names import step_names
from elman.plan.build import output_is_state, program
from elman.plan.checkpoint import Sizes
from elman.plan.cost import backward_work, forward_work, item_bytes, state_bytes, tape_bytes
from elman.plan.prices import width
from elman.plan.printer import program_names, show_program
from elman.plan.program import Program
from elman.plan.spec import PlanOptions, Spec, Tape
from elman.tuning.choose import Choice, choose
from elman.tuning.kernels import candidates, label
from elman.tuning.phases import phases, shares
from elman.tuning.request import Rule

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
    """One layer in one direction, and how it is called.

    Attributes:
        name: suffix of its weights' names, ``l0``, ``l1_reverse``; the cell's name for a cell.
        cell: its formula.
        spec: sizes, dtype, device, wanted gradients.
        steps, batch: T and B.
        engine: what is asked for, a name or ``auto``.
        elsewhere: why the module leaves the layer to torch's own instead, if it does.
        choice: what the layer has chosen already, if it has.
        checkpoint: steps between two kept states; 0: everything is kept.
        group: number of the layers that run together with it.
        rules: how options change its step; that of a cell that draws random numbers in training.
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

    @property
    def graph(self) -> Graph:
        """The formula as it runs."""
        return compiler.graph_of(self.cell, self.rules)

    @property
    def pair(self) -> Pair:
        """Its canonical step, and the adjoint."""
        return compiler.pair_of(self.cell, self.rules)

    @property
    def job(self) -> Job:
        """What an engine is asked for."""
        return compiler.job(self.cell, self.spec, self.rules)

    @property
    def at_once(self) -> int:
        """Steps that its engine is given at once."""
        return min(self.steps, self.checkpoint or self.steps)


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


@dataclass(frozen=True, eq=False)
class Explanation:
    """What ``explain`` found; ``print`` shows all of it.

    Attributes:
        title: what is explained.
        stages: name -> text: ``graph`` (as written), ``step`` (canonical), ``backward``,
            ``program``, ``engines``, ``cost``.
        engines: everyone who could run a layer, with timing or refusal.
        tape_bytes: what the forward of one call keeps for its backward, all layers together; None
            where engines run that do not say (torch's own, or autograd).
        flops: floating point operations of the matrix products of one call, forward and backward;
            None where torch's own layers run.
        programs: per layer.
        peak_bytes: the most that states and tapes take at once in a training step: more than
            ``tape_bytes`` with ``checkpoint=`` alone, by what is computed again at a time.
        step_bytes: the most that a training step takes beside its arguments and the output's
            cotangent: ``peak_bytes``, outputs, gradients, and what kernels work in.
    """

    title: str
    stages: Mapping[str, str]
    engines: tuple[Candidate, ...]
    tape_bytes: int | None
    flops: int | None
    programs: Mapping[str, Program] = field(repr=False)
    peak_bytes: int | None = None
    step_bytes: int | None = None

    def __str__(self) -> str:
        texts = [f"{_TITLES[name]}\n{_indented(text)}" for name, text in self.stages.items()]
        return "\n\n".join([self.title, *texts])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


_TITLES = {
    "graph": "The formula as written",
    "step": "The canonical step: gate blocks, blocks, sums by rate",
    "backward": "The backward step, derived from it",
    "program": "The program: what leaves the loop, what is taped, which products join",
    "engines": "Engines",
    "cost": "Memory and work",
}


def explain(
    what: Cell | Sequence[Layer],
    x: Any = None,
    *,
    input_size: int | None = None,
    hidden_size: int = 128,
    steps: int = 100,
    batch: int = 16,
    dtype: str = "float32",
    device: str = "cpu",
    training: bool = True,
    tape: Tape = "auto",
    without: Collection[str] = (),
    engine: str = "auto",
    measure: bool = True,
    **dims: int,
) -> Explanation:
    """Print every stage from a cell's text to the engine that runs it.

    Args:
        what: a cell, or layers as they would run.
        x: nothing here: the example input of a module, which has told its layers for it.
        input_size, hidden_size: of a cell; input_size is hidden_size if omitted.
        steps, batch: T and B for a cell.
        dtype, device, training, tape: of a cell; all gradients are wanted in training.
        without: of a cell, optimizations that are left out (``plan.spec.OPTIMIZATIONS``).
        engine: for a cell, a name or ``auto``.
        measure: whether engines are timed (and compiled) where the choice is not known yet.
        dims: sizes of a cell's other dims.

    Raises:
        InputError: ``what`` is nothing that can be explained, or ``without`` names something
            that is no optimization.
        EngineError: an engine asked for by name cannot run this; the text says why.
    """
    if isinstance(what, Cell):
        sizes = what.bind(hidden_size if input_size is None else input_size, hidden_size, **dims)
        wants = what.differentiated if training else frozenset[str]()
        options = PlanOptions.of(tape, without)
        spec = Spec(tuple(sorted(sizes.items())), dtype, device, wants, training, options)
        rules = compiler.training_rules(what) if training else ()
        layers: Sequence[Layer] = [Layer(what.name, what, spec, steps, batch, engine, rules=rules)]
    elif isinstance(what, Sequence) and all(isinstance(layer, Layer) for layer in what):
        layers = what
    else:
        raise InputError(
            diagnostic(
                f"explain takes a cell or a module of elman's, not {type(what).__name__}",
                [("value", repr(what).partition("\n")[0])],
                "elman.explain(model.rnn, x); elman.accelerate makes modules of torch's elman's",
            )
        )
    return _explained(layers, measure)


def _explained(layers: Sequence[Layer], measure: bool) -> Explanation:
    chosen = [(layer, _choice(layer, measure)) for layer in layers]
    programs = {layer.name: _program(layer, choice) for layer, choice in chosen}
    cells = {layer.cell: layer for layer in reversed(layers)}
    unlike = [cells[cell] for cell in dict.fromkeys([layer.cell for layer in layers])]
    hints = {layer.cell: _hints(layer) for layer in unlike}
    names = {cell: program_names(programs[cells[cell].name], own) for cell, own in hints.items()}
    engines = tuple(
        candidate for layer, choice in chosen for candidate in _candidates(layer, choice)
    )
    stages = {
        "graph": _of_each(unlike, _formula),
        "step": _of_each(
            unlike,
            lambda layer: (
                f"{_recurrence(layer.pair.source)}\n{show_step(layer.pair.step, names[layer.cell])}"
            ),
        ),
        "backward": _of_each(unlike, lambda layer: show_backward(layer.pair, names[layer.cell])),
        "program": "\n".join(
            [*_unused(chosen), _programs(programs, [hints[layer.cell] for layer in layers])]
        ),
        "engines": "\n".join(_engine_texts(chosen, measure)),
        "cost": _cost(layers, programs, [choice for _, choice in chosen]),
    }
    told = _told(chosen)
    flops = None
    if not any(layer.elsewhere for layer in layers):
        flops = sum(
            layer.steps * layer.batch * (forward_work(of).products + backward_work(of).products)
            for layer, of in zip(layers, programs.values(), strict=True)
        )
    return Explanation(
        "; ".join(_title(layer.cell) for layer in unlike),
        stages,
        engines,
        None if told is None else sum(one.forward for one in told),
        flops,
        programs,
        None if told is None else _peak(layers, told),
        None if told is None else _peak(layers, told) + _around(chosen, programs),
    )


def _title(cell: Cell) -> str:
    about = cell.__doc__.partition("\n")[0].replace("``", "")
    return f"{cell.name}: {about}" if about else cell.name


def _hints(layer: Layer) -> dict[Any, str]:
    return step_names(layer.graph, layer.pair.step, layer.cell.output_names)


def _of_each(layers: Sequence[Layer], text: Callable[[Layer], str]) -> str:
    """A text of the first layer of each cell; with the layer's name if there are several."""
    if len(layers) == 1:
        return text(layers[0])
    return "\n".join(f"{layer.name}, {layer.cell.name}:\n{text(layer)}" for layer in layers)


def step_bytes(layers: Sequence[Layer], measure: bool = True) -> int | None:
    """``Explanation.step_bytes`` alone: nothing is run where an engine is asked for by name.

    Args:
        layers: as they would run.
        measure: whether engines are timed where the choice is not known yet.
    """
    chosen = [(layer, _choice(layer, measure)) for layer in layers]
    told = _told(chosen)
    if told is None:
        return None
    programs = {layer.name: _program(layer, choice) for layer, choice in chosen}
    return _peak(layers, told) + _around(chosen, programs)


def _choice(layer: Layer, measure: bool) -> Choice | dict[str, str]:
    """What runs a layer; where nothing may be benchmarked, why the others do not."""
    if layer.elsewhere is not None:
        return {}
    if layer.choice is not None:
        return layer.choice
    of = layer.job
    if measure and layer.cell.states:
        return choose(of, layer.at_once, layer.batch, layer.engine)
    return candidates(of, _asked(layer), layer.at_once, layer.batch)[1]


def _asked(layer: Layer) -> tuple[str, ...]:
    return registry.names() if layer.engine == "auto" else (layer.engine,)


def _program(layer: Layer, choice: Choice | dict[str, str]) -> Program:
    known = getattr(choice.kernel, "program", None) if isinstance(choice, Choice) else None
    return known or program(layer.pair, layer.spec)


def _formula(layer: Layer) -> str:
    cell, graph = layer.cell, layer.graph
    written = graph if layer.rules else expected(cell.graph)
    static = [entry.name for entry in cell.static]
    lines = [show_graph(written, static, cell.constants, cell.output_names)]
    held = graph.states[len(cell.states) :]
    if held:
        lines.append(f"once per sequence: {', '.join(leaf.name for leaf in held)}")
    return "\n".join([*lines, *([f"source: {cell.source}"] if cell.source else [])])


def _recurrence(step: Step) -> str:
    """How the states depend on those of the step before: what decides about all steps at once."""
    several = Counter(leaf.name for leaf in step.states)
    names = [
        f"{leaf.name}.{leaf.row}" if several[leaf.name] > 1 else leaf.name for leaf in step.states
    ]
    return f"recurrence: {structure(step).show(tuple(names))}"


def _unused(chosen: Sequence[tuple[Layer, Choice | dict[str, str]]]) -> Iterable[str]:
    """Say where another engine computes the formula without this program."""
    for layer, choice in chosen:
        runs = choice.engine if isinstance(choice, Choice) else ""
        runs = "torch's own layer" if layer.elsewhere is not None else runs and f"engine {runs}"
        has_program = isinstance(choice, Choice) and hasattr(choice.kernel, "program")
        if runs and not has_program:
            yield f"{layer.name} runs on {runs}, which does not follow this program"


def _programs(programs: Mapping[str, Program], hints: Sequence[Mapping[Any, str]]) -> str:
    """The programs of all layers, those that differ in no more than a size told once."""
    lines: list[str] = []
    before = ""
    for (name, of), own in zip(programs.items(), hints, strict=True):
        head, _, rest = show_program(of, own).partition("\n")
        lines.append(f"{name}: {head}")
        lines.append("  the same" if rest == before else rest)
        before = rest
    return "\n".join(lines)


def _candidates(layer: Layer, choice: Choice | dict[str, str]) -> Iterable[Candidate]:
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
        able, refusals = candidates(of, _asked(layer), layer.at_once, layer.batch)
        for candidate in able:
            yield Candidate(layer.name, label(candidate), None, None, False)
    for name, reason in refusals.items():
        yield Candidate(layer.name, name, None, reason, False)


def _engine_texts(
    chosen: Sequence[tuple[Layer, Choice | dict[str, str]]], measure: bool
) -> Iterable[str]:
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


def _engine_lines(layer: Layer, choice: Choice | dict[str, str]) -> Iterable[str]:
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
    candidates = list(_candidates(layer, choice))
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


class Kept(NamedTuple):
    """What one call of a layer keeps for its backward (bytes).

    Attributes:
        forward: of what the forward keeps.
        span: of what the backward computes again at a time.
        whole: of everything, without ``checkpoint=``.
    """

    forward: int
    span: int
    whole: int


def _told(chosen: Sequence[tuple[Layer, Choice | dict[str, str]]]) -> list[Kept] | None:
    """What each layer keeps; None if one does not tell."""
    kept = [_kept(layer, choice) for layer, choice in chosen]
    told = [one for one in kept if one is not None]
    return told if len(told) == len(kept) else None


def _kept(layer: Layer, choice: Choice | dict[str, str]) -> Kept | None:
    """Where that is known."""
    if not layer.spec.training:
        return Kept(0, 0, 0)
    sizes = _sizes(layer, choice)
    if sizes is None:
        return None
    whole = sizes.whole(layer.steps)
    if not layer.checkpoint:
        return Kept(whole, 0, whole)
    return Kept(sizes.kept(layer.steps, layer.checkpoint), sizes.whole(layer.at_once), whole)


def _sizes(layer: Layer, choice: Choice | dict[str, str]) -> Sizes | None:
    """Bytes that a step keeps."""
    if isinstance(choice, Choice):
        state, first = (choice.kernel.tape_bytes(steps, layer.batch) for steps in (0, 1))
        return None if state is None or first is None else Sizes(state, first - state)
    if layer.elsewhere is not None:
        return None
    of = program(layer.pair, layer.spec)
    state = layer.batch * state_bytes(of)
    return Sizes(state, layer.batch * tape_bytes(of) + state)


def _peak(layers: Sequence[Layer], kept: Sequence[Kept]) -> int:
    """The most at once: what is kept, and a span of the layers that run together."""
    groups: dict[int, int] = {}
    for layer, one in zip(layers, kept, strict=True):
        groups[layer.group] = groups.get(layer.group, 0) + one.span
    return sum(one.forward for one in kept) + max(groups.values())


def _around(
    chosen: Sequence[tuple[Layer, Choice | dict[str, str]]], programs: Mapping[str, Program]
) -> int:
    """Outputs, gradients and workspace of a training step (bytes), as far as they are there at
    once.

    An output that is a state is part of the states, unless these are not kept, or the outputs of
    two directions are joined; between layers, a gradient of a layer's output ends with its layer.
    """
    layers = [layer for layer, _ in chosen]
    spaces = {
        choice.kernel: choice.kernel.workspace_bytes(layer.at_once, layer.batch)
        for layer, choice in chosen
        if isinstance(choice, Choice)
    }
    outputs = weights = 0
    d_inputs: list[int] = []
    two = any(layer.name.endswith("_reverse") for layer in layers)
    for layer in layers:
        if not layer.spec.training:
            continue
        rows, sizes, item = layer.steps * layer.batch, layer.spec.sizes, item_bytes(layer.spec)
        graph, wants = layer.graph, layer.spec.wants
        apart = layer.checkpoint or two or not output_is_state(programs[layer.name].pair)
        if apart and (two or layer is layers[-1] or layer.group != layers[-1].group):
            outputs += item * rows * sum(width(v, sizes) for v in graph.outputs)
        weights += item * sum(width(leaf, sizes) for leaf in graph.weights if leaf.name in wants)
        of_inputs = [width(leaf, sizes) for leaf in graph.inputs if leaf.name in wants]
        d_inputs.append(item * rows * sum(of_inputs))
    most = max(map(sum, pairwise((0, *d_inputs))), default=0)
    return outputs + weights + most + sum(spaces.values())


def _cost(
    layers: Sequence[Layer],
    programs: Mapping[str, Program],
    choices: Sequence[Choice | dict[str, str]],
) -> str:
    lines: list[str] = []
    for layer, choice in zip(layers, choices, strict=True):
        if layer.elsewhere is not None:
            lines.append(f"{layer.name}: torch's own layer, what it keeps and does is not told")
            continue
        of, kept = programs[layer.name], _kept(layer, choice)
        lines.append(f"{layer.name}: kept for the backward {_kept_text(layer, kept)}")
        for way, work in (("forward", forward_work(of)), ("backward", backward_work(of))):
            lines.append(
                f"  {way:<8} per step and sample: {work.products:,} FLOP in products, "
                f"{work.pointwise:,} pointwise"
            )
    return "\n".join(lines)


def _kept_text(layer: Layer, kept: Kept | None) -> str:
    if layer.checkpoint and kept is None:
        return f"the states of every {layer.checkpoint} steps"
    if kept is None:
        return "what torch keeps, not told"
    if not layer.checkpoint:
        return f"{_size(kept.forward)} per call"
    return (
        f"{_size(kept.forward)} per call (the states of every {layer.checkpoint} steps), and "
        f"{_size(kept.span)} at a time computed again; {_size(kept.whole)} without checkpoint"
    )


def _size(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} GiB"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in text.splitlines())
