"""Time the engines for a cell at your sizes and remember the fastest."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

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
from elman.cli._terminal import plain, wide_console
from elman.engines.base import Job
from elman.engines.together import Arrangement
from elman.explaining import WHY
from elman.frontend.cell import Cell
from elman.plan.spec import Spec
from elman.tuning.choose import Choice, choose
from elman.tuning.kernels import label
from elman.tuning.machine import Waiting, describe_waiting
from elman.tuning.together import APART, AT_ONCE, choose_together

AGAIN = " (--again benchmarks anew)"
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
    waiting = Waiting()
    for text in shape or ["100,16"]:
        steps, batch = shape_of(text)
        members: list[tuple[Job, Choice]] = []
        for first, wants in calls(formula, training).items():
            spec = Spec(tuple(sorted(dims.items())), dtype, place, wants, training)
            job = compiler.job(formula, spec)
            choice = choose(job, steps, batch, engine, again=again)
            members.append((job, choice))
            origin = WHY[choice.why] + AGAIN * (choice.why == "remembered")
            title = f"{formula.name} T={steps} B={batch}{first}: {origin}"
            console.print(table_of(title, choice))
            if not choice.sure:
                console.print(f"[yellow]not sure yet[/]: {UNSURE}")
        if layers > 1:
            stack = [members[0]] + [members[-1]] * (layers - 1)
            console.print(stack_table(stack, steps, batch))
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


def stack_table(members: list[tuple[Job, Choice]], steps: int, batch: int) -> Table:
    """Table of times of a stack's training step: layers at once, and one after another."""
    jobs, choices = [job for job, _ in members], [choice for _, choice in members]
    counts = (len(jobs[0].graph.states),) * len(jobs), (len(jobs[0].graph.weights),) * len(jobs)
    choice = choose_together(jobs, choices, steps, batch, Arrangement(*counts, False, 0))
    title = f"{len(jobs)} layers of {jobs[0].name} T={steps} B={batch}"
    table = Table("schedule", "a training step", "", title=plain(title), title_justify="left")
    if choice is None or not choice.medians_s:
        refusal = choice.refusals.get(AT_ONCE) if choice else "autograd sees through some layers"
        table.add_row("one after another", "not timed", plain(refusal or "nothing else is offered"))
        return table
    words = {AT_ONCE: "at once", APART: "one after another"}
    for schedule, seconds in sorted(choice.medians_s.items(), key=lambda item: item[1]):
        time = f"{seconds * steps * 1e6:.0f} µs"
        table.add_row(words[schedule], time, "runs" if schedule == choice.schedule else "")
    return table


def shape_of(text: str) -> tuple[int, int]:
    """Read ``100,16``."""
    steps, comma, batch = text.partition(",")
    if not (comma and steps.isdecimal() and batch.isdecimal() and int(steps) and int(batch)):
        raise typer.BadParameter(f"{text!r} is not of the form 100,16", param_hint="--shape")
    return int(steps), int(batch)


def table_of(title: str, choice: Choice) -> Table:
    """Candidates by time, then those that cannot run, with the reason."""
    table = Table(title=plain(title), title_justify="left")
    table.add_column("engine:schedule")
    table.add_column("time of a step", justify="right")
    table.add_column("slowdown", justify="right")
    table.add_column("status")
    running = label((choice.engine, choice.schedule))
    medians = dict(sorted(choice.medians_s.items(), key=lambda item: item[1]))
    best = min(medians.values(), default=None)
    for name in dict.fromkeys([*medians, running]):
        seconds = medians.get(name)
        slowdown = f"{seconds / best:.2f}x" if seconds and best else ""
        time = f"{seconds * 1e6:.3g} µs" if seconds else "not benchmarked"
        table.add_row(plain(name), time, slowdown, "runs" if name == running else "")
    for name, reason in choice.refusals.items():
        table.add_row(plain(name), "", "", plain(f"cannot run: {reason}"))
    return table
