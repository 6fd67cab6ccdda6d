"""Time the engines for a cell at your sizes and remember the fastest."""

from __future__ import annotations

from typing import Annotated

import typer

from elman import compiler
from elman.cell_files import find_cell
from elman.cli._options import (
    CALL,
    CELL,
    ENGINE,
    CellName,
    DeviceOption,
    Dims,
    DTypeOption,
    Engine,
    Hidden,
    Inputs,
    Training,
    check_device,
    resolve_sizes,
)
from elman.cli._terminal import plain, say, wide_console
from elman.engines.base import Arrangement
from elman.explaining import WHY, Layer
from elman.explaining.layers import choice_of, time_text
from elman.frontend.cell import Cell
from elman.nn.inspect import tune_layers
from elman.plan.spec import Spec
from elman.tuning.choose import Choice
from elman.tuning.machine import Waiting, describe_waiting
from elman.tuning.together import APART, AT_ONCE, choose_together

EXAMPLES = (
    "elman tune gru --hidden 256 --inputs 64 --shape 100,32 --shape 200,16",
    "elman tune lstm --layers 4 --again",
)
UNSURE = (
    "other programs took the cores, or a call is long. What was benchmarked is kept, and the next "
    "process adds to it."
)


def tune(
    cell: CellName,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            help="Steps and samples; repeat the option for several. 100,16 by default.",
            metavar="T,B",
            rich_help_panel=CALL,
        ),
    ] = None,
    hidden: Hidden = 128,
    inputs: Inputs = None,
    dim: Dims = None,
    dtype: DTypeOption = "float32",
    device: DeviceOption = "cpu",
    engine: Engine = "auto",
    training: Training = True,
    layers: Annotated[
        int,
        typer.Option(
            help="Layers of a stack; with more than one, also time them running concurrently.",
            min=1,
            rich_help_panel=CELL,
        ),
    ] = 1,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Repeat timings that are already known.", rich_help_panel=ENGINE
        ),
    ] = False,
) -> None:
    """Time the engines for a cell at your sizes and remember the fastest.

    The cell is timed as a first layer, whose input is data, and as a later layer, whose input
    needs a gradient. The winner of each size bucket (T and B up to powers of two) is stored, so
    training starts without timing.
    """
    console = wide_console()
    if layers > 1 and inputs not in (None, hidden):
        raise typer.BadParameter("of a stack it is --hidden", param_hint="--inputs")
    formula = find_cell(cell)
    input_size, hidden_size, further_dims = resolve_sizes(formula, hidden, inputs, dim)
    dims, place = formula.bind(input_size, hidden_size, **further_dims), check_device(device)
    rules = compiler.training_rules(formula) if training else ()
    waiting = Waiting()
    for text in shape or ["100,16"]:
        steps, batch = shape_of(text)
        tuned: list[Layer] = []
        for kind, wants in calls(formula, training).items():
            spec = Spec(tuple(sorted(dims.items())), dtype, place, wants, training)
            name = f"{formula.name}{kind}"
            tuned.append(Layer(name, formula, spec, steps, batch, engine, rules=rules))
        result = tune_layers([("", layer) for layer in tuned], again)
        for line in str(result).splitlines():
            say(console, line)
        if WHY["remembered"] in str(result):
            say(console, "--again benchmarks anew")
        if not result.sure:
            console.print(f"[yellow]not sure yet[/]: {UNSURE}")
        if layers > 1:
            say(console, stack_line([tuned[0]] + [tuned[-1]] * (layers - 1)))
    if busy := describe_waiting(waiting.share()):
        console.print(plain(busy), style="yellow")


def calls(cell: Cell, training: bool) -> dict[str, frozenset[str]]:
    """The kinds of calls in a run, and what gets a gradient: a first layer's data get none."""
    if not training:
        return {"": frozenset()}
    weights = cell.differentiated - {entry.name for entry in cell.inputs}
    inputs = frozenset(entry.name for entry in cell.inputs)
    further = {", its input a layer's output": weights | inputs}
    return {", its input data": weights, **further} if weights else further


def stack_line(layers: list[Layer]) -> str:
    """Times of a stack's training step: layers at once, and one after another."""
    jobs, steps, batch = [layer.job for layer in layers], layers[0].steps, layers[0].batch
    choices = [choice_of(layer, measure=True) for layer in layers]
    counts = (len(jobs[0].graph.states),) * len(jobs), (len(jobs[0].graph.weights),) * len(jobs)
    kernels = [choice for choice in choices if isinstance(choice, Choice)]
    choice = choose_together(jobs, kernels, steps, batch, Arrangement(*counts, False, 0))
    title = f"{len(jobs)} layers of {jobs[0].name} (T = {steps}, B = {batch})"
    if choice is None or not choice.medians_s:
        refusal = choice.refusals.get(AT_ONCE) if choice else "autograd sees through some layers"
        return f"{title}: one after another; {refusal or 'nothing else is offered'}"
    words = {AT_ONCE: "at once", APART: "one after another"}
    times = sorted(choice.medians_s.items(), key=lambda item: item[1])
    return f"{title}: " + ", ".join(
        f"{words[schedule]} {time_text(seconds * steps)} a training step"
        + "  <- runs" * (schedule == choice.schedule)
        for schedule, seconds in times
    )


def shape_of(text: str) -> tuple[int, int]:
    """Read ``100,16``."""
    steps, comma, batch = text.partition(",")
    if not (comma and steps.isdecimal() and batch.isdecimal() and int(steps) and int(batch)):
        raise typer.BadParameter(f"{text!r} is not of the form 100,16", param_hint="--shape")
    return int(steps), int(batch)
