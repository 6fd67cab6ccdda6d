"""Every stage of a cell or a module as text: formula, steps, program and engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from elman import compiler
from elman.autodiff.structure import structure
from elman.checks import check_choice, check_flag, check_size, shown
from elman.errors import InputError
from elman.escaping import xml_text
from elman.explaining.costs import (
    TapeCost,
    cost,
    flops,
    peak,
    size_text,
    step_bytes,
    surrounding_bytes,
    tape_costs,
)
from elman.explaining.layers import (
    WHY,
    Candidate,
    Layer,
    LayerChoice,
    candidates_of,
    choice_of,
    engine_texts,
    program_of,
    summary_of,
)
from elman.frontend.cell import Cell
from elman.ir.pair import Step
from elman.ir.printer import show_backward, show_graph, show_step
from elman.ir.types import shape_size
from elman.passes.draws import expected
from elman.passes.names import step_names
from elman.plan.cost import ITEM_BYTES
from elman.plan.printer import program_names, show_program
from elman.plan.program import Program
from elman.plan.spec import USUAL, PlanOptions, Spec, check_plan
from elman.tuning.choose import Choice
from elman.tuning.precision import effective_precision, matrix_bytes

__all__ = ["WHY", "Candidate", "Explanation", "Layer", "explain", "step_bytes"]


@dataclass(frozen=True, eq=False)
class Explanation:
    """The stages of a cell or module. ``print`` shows the summary and the engines, or else the
    formula; :attr:`all` has every stage.

    Attributes:
        title: the cell's name and description.
        stages: name -> text: ``graph`` (as written), ``step`` (canonical), ``backward``,
            ``program``, ``engines``, ``cost``.
        engines: all candidates of each layer, with time or refusal.
        tape_bytes: kept by the forward of one call for its backward, summed over layers; None
            for engines that do not tell (torch's own, or autograd).
        flops: floating point operations of the matrix products of one call, forward and backward,
            each product once: the work of the formula, which shares of a peak are taken from; None
            where torch's own layers run.
        programs: per layer.
        peak_bytes: the most that states and tapes take at once in a training step: more than
            ``tape_bytes`` with ``checkpoint=`` alone, by what is computed again at a time.
        step_bytes: the most that a training step takes beside its arguments and the output's
            cotangent: ``peak_bytes``, outputs, gradients, and what kernels work in.
        executed_flops: the work done for ``flops``: with products that the backward computes again
            instead of keeping them (``tape=``), and the second forward of ``checkpoint=``.
        summary: three lines: engine; time compared with torch's layer; memory.
    """

    title: str
    stages: Mapping[str, str]
    engines: tuple[Candidate, ...]
    tape_bytes: int | None
    flops: int | None
    programs: Mapping[str, Program] = field(repr=False)
    peak_bytes: int | None = None
    step_bytes: int | None = None
    executed_flops: int | None = None
    summary: str = ""

    def __str__(self) -> str:
        shown = "engines" if "engines" in self.stages else "graph"
        others = ", ".join(name for name in self.stages if name != shown)
        return f"{self._text([shown])}\n\n.all has every stage: also {others}"

    @property
    def all(self) -> str:
        """The summary and every stage."""
        return self._text([*self.stages])

    def _text(self, names: Sequence[str]) -> str:
        texts = [f"{_TITLES[name]}\n{_indent(self.stages[name])}" for name in names]
        head = "\n".join(filter(None, [self.title, _indent(self.summary)]))
        return "\n\n".join([head, *texts])

    def _repr_html_(self) -> str:
        text = self._text(["engines"] if "engines" in self.stages else ["graph"])
        rest = f"<details><summary>every stage</summary><pre>{xml_text(self.all)}</pre></details>"
        return f"<pre>{xml_text(text)}</pre>{rest}"


_TITLES = {
    "graph": "The formula as written",
    "step": "Canonical step: gate blocks, sums grouped by rate",
    "backward": "Backward step, derived from it",
    "program": "Program: hoisted values, saved activations, joined products",
    "engines": "Engines",
    "cost": "Memory and work",
}


def explain(
    subject: Cell | Sequence[Layer],
    x: Any = None,
    *,
    input_size: int | None = None,
    hidden_size: int = 128,
    steps: int = 100,
    batch: int = 16,
    dtype: str = "float32",
    device: str = "cpu",
    training: bool = True,
    plan: PlanOptions = USUAL,
    engine: str = "auto",
    measure: bool = True,
    **dims: int,
) -> Explanation:
    """Print every stage from a cell's text to the engine that runs it.

    Args:
        subject: a cell, or layers as they would run.
        x: nothing here: the example input of a module, whose layers are known by now.
        input_size, hidden_size: of a cell; input_size is hidden_size if omitted.
        steps, batch: T and B for a cell.
        dtype, device, training: of a cell; all gradients are wanted in training.
        plan: of a cell; its checkpoint is a number of steps.
        engine: for a cell, a name or ``auto``.
        measure: whether engines are timed (and compiled) where the choice is not known yet.
        dims: sizes of a cell's other dims.

    Raises:
        InputError: ``subject`` is nothing that can be explained, or a cell's plan has a budget.
        EngineError: an engine asked for by name cannot run this; the text says why.
    """
    check_flag("measure", measure)
    if isinstance(subject, Cell):
        check_size("steps", steps)
        check_size("batch", batch)
        check_choice("dtype", dtype, ITEM_BYTES)
        check_choice("device", device, ("cpu", "cuda"))
        check_flag("training", training)
        sizes = subject.bind(hidden_size if input_size is None else input_size, hidden_size, **dims)
        batch, subject = batch * subject.batch_heads, subject.sample
        wants = subject.differentiated if training else frozenset[str]()
        plan = check_plan(plan)
        if plan.checkpoint == "auto":
            hint = "elman.explain(elman.Recurrent(cell, I, H, plan=plan), x)"
            raise InputError("a memory budget is a module's, for all of its layers", hint)
        checkpoint = plan.checkpoint or 0 if training else 0
        kind = getattr(torch, dtype)
        weights = matrix_bytes(shape_size(entry.shape, sizes) for entry in subject.weights)
        precision, unrounded = effective_precision(plan, kind, device, engine, batch, weights)
        spec = Spec(
            tuple(sorted(sizes.items())), dtype, device, wants, training, plan.planned, precision
        )
        rules = compiler.training_rules(subject) if training else ()
        layer = Layer(
            subject.name,
            subject,
            spec,
            steps,
            batch,
            engine,
            checkpoint=checkpoint,
            rules=rules,
            unrounded=unrounded,
        )
        layers: Sequence[Layer] = [layer]
    elif (
        isinstance(subject, Sequence)
        and subject
        and all(isinstance(layer, Layer) for layer in subject)
    ):
        layers = subject
    else:
        raise InputError(
            f"explain takes a cell or a module of elman's, not {type(subject).__name__}",
            "elman.explain(model.rnn, x); elman.accelerate(model) makes torch's layers elman's",
            value=shown(subject),
        )
    return _explain_layers(layers, measure)


def _explain_layers(layers: Sequence[Layer], measure: bool) -> Explanation:
    choices = [(layer, choice_of(layer, measure)) for layer in layers]
    programs = {layer.name: program_of(layer, choice) for layer, choice in choices}
    cells = {layer.cell: layer for layer in reversed(layers)}
    unlike = [cells[cell] for cell in dict.fromkeys([layer.cell for layer in layers])]
    hints = {layer.cell: _hints(layer) for layer in unlike}
    names = {cell: program_names(programs[cells[cell].name], hint) for cell, hint in hints.items()}
    engines = tuple(
        candidate for layer, choice in choices for candidate in candidates_of(layer, choice)
    )
    stages = {
        "graph": _per_cell(unlike, _formula),
        "step": _per_cell(
            unlike,
            lambda layer: (
                f"{_recurrence(layer.pair.source)}\n{show_step(layer.pair.step, names[layer.cell])}"
            ),
        ),
        "backward": _per_cell(unlike, lambda layer: show_backward(layer.pair, names[layer.cell])),
        "program": "\n".join(
            [
                *_foreign_engines(choices),
                _programs(programs, [hints[layer.cell] for layer in layers]),
            ]
        ),
        "engines": "\n".join(engine_texts(choices, measure)),
        "cost": cost(layers, programs, [choice for _, choice in choices]),
    }
    tapes = tape_costs(choices)
    work = None
    if not any(layer.elsewhere for layer in layers):
        work = flops(layers, programs)
    step = None if tapes is None else peak(layers, tapes) + surrounding_bytes(choices, programs)
    return Explanation(
        "; ".join(_title(layer.cell) for layer in unlike),
        stages,
        engines,
        None if tapes is None else sum(tape.forward for tape in tapes),
        work and work.formula,
        programs,
        None if tapes is None else peak(layers, tapes),
        step,
        work and work.executed,
        "\n".join([*summary_of(choices), _memory(tapes, step)]),
    )


def _memory(tapes: Sequence[TapeCost] | None, step: int | None) -> str:
    """The line of memory in a summary."""
    if tapes is None or step is None:
        return "memory  unknown: the engine does not tell what it keeps"
    saved = size_text(sum(tape.forward for tape in tapes))
    return f"memory  {saved} saved for the backward, {size_text(step)} at most in a training step"


def _title(cell: Cell) -> str:
    about = cell.__doc__.partition("\n")[0].replace("``", "")
    return f"{cell.name}: {about}" if about else cell.name


def _hints(layer: Layer) -> dict[Any, str]:
    return step_names(layer.graph, layer.pair.step, layer.cell.output_names)


def _per_cell(layers: Sequence[Layer], text: Callable[[Layer], str]) -> str:
    """A text of the first layer of each cell; with the layer's name if there are several."""
    if len(layers) == 1:
        return text(layers[0])
    return "\n".join(f"{layer.name}, {layer.cell.name}:\n{text(layer)}" for layer in layers)


def _formula(layer: Layer) -> str:
    cell, graph = layer.cell, layer.graph
    graph_shown = graph if layer.rules else expected(cell.graph)
    static = [entry.name for entry in cell.static]
    outputs = cell.output_names and (*cell.output_names, *(state.name for state in cell.states))
    lines = [show_graph(graph_shown, static, cell.constants, outputs)]
    sequence_states = graph.states[len(cell.states) :]
    if sequence_states:
        lines.append(f"once per sequence: {', '.join(leaf.name for leaf in sequence_states)}")
    return "\n".join([*lines, *([f"source: {cell.source}"] if cell.source else [])])


def _recurrence(step: Step) -> str:
    """Structure of the dependence of states on the previous step, which decides on parallel-in-time
    methods."""
    several = Counter(leaf.name for leaf in step.states)
    names = [
        f"{leaf.name}.{leaf.row}" if several[leaf.name] > 1 else leaf.name for leaf in step.states
    ]
    return f"recurrence: {structure(step).show(tuple(names))}"


def _foreign_engines(choices: Sequence[tuple[Layer, LayerChoice]]) -> Iterable[str]:
    """Lines on layers whose engine does not follow the program."""
    for layer, choice in choices:
        runs = choice.engine if isinstance(choice, Choice) else ""
        runs = "torch's own layer" if layer.elsewhere is not None else runs and f"engine {runs}"
        has_program = isinstance(choice, Choice) and hasattr(choice.kernel, "program")
        if runs and not has_program:
            yield f"{layer.name} runs on {runs}, which does not follow this program"


def _programs(programs: Mapping[str, Program], hints: Sequence[Mapping[Any, str]]) -> str:
    """The programs of all layers, those that differ in no more than a size shown once."""
    lines: list[str] = []
    before = ""
    for (name, program), names in zip(programs.items(), hints, strict=True):
        head, _, body = show_program(program, names).partition("\n")
        lines.append(f"{name}: {head}")
        lines.append("  the same" if body == before else body)
        before = body
    return "\n".join(lines)


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" if line else "" for line in text.splitlines())
