"""Measure who runs a cell fastest at given sizes, and remember it for every later process."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from elman import compiler
from elman.cli._options import (
    CellName,
    Device,
    DeviceOption,
    Dims,
    DType,
    DTypeOption,
    Engine,
    Hidden,
    Inputs,
    Training,
    measurable,
    sized,
)
from elman.cli._terminal import plain, wide_console
from elman.engines.base import Job
from elman.engines.together import Arrangement
from elman.errors import InputError
from elman.explaining import WHY
from elman.frontend.cell import Cell
from elman.plan.spec import Spec
from elman.train.loop.layers import find_cell
from elman.tuning.allreduce import INTERCONNECTS, Interconnect, find_interconnect
from elman.tuning.choose import Choice, choose
from elman.tuning.kernels import label
from elman.tuning.together import APART, AT_ONCE, choose_together, with_workers

LINKS = f"{', '.join(INTERCONNECTS)}, or LATENCY_US,GBYTE_S."
AGAIN = " (--again benchmarks anew)"
UNSURE = (
    "other programs took the cores, or a call is long. What was benchmarked is kept, and the next "
    "process adds to it."
)


def tune(
    cell: CellName,
    shape: Annotated[
        list[str] | None, typer.Option(help="Steps and samples, T,B; may be given several times.")
    ] = None,
    hidden: Hidden = 128,
    inputs: Inputs = None,
    dim: Dims = None,
    dtype: DTypeOption = DType.FLOAT32,
    device: DeviceOption = Device.CPU,
    engine: Engine = "auto",
    training: Training = True,
    layers: Annotated[
        int,
        typer.Option(
            help="Layers of a stack; beyond 1, also measures whether they run at once.", min=1
        ),
    ] = 1,
    workers: Annotated[
        int, typer.Option(help="Data-parallel workers, which sum their gradients.", min=1)
    ] = 1,
    interconnect: Annotated[
        str, typer.Option(help=f"What connects the workers: {LINKS}")
    ] = "infiniband",
    again: Annotated[
        bool, typer.Option("--again", help="Benchmark anew what was benchmarked before.")
    ] = False,
) -> None:
    """Measure engines and schedules for a cell at the sizes of a run to come.

    Both as a first layer, whose input is data, and as one whose input gets a gradient.

    The winner of each size bucket (powers of two of T and B) is remembered; training then starts at
    once.
    """
    console = wide_console()
    link = find_link(interconnect)
    if layers > 1 and inputs not in (None, hidden):
        raise typer.BadParameter("of a stack it is --hidden", param_hint="--inputs")
    found = find_cell(cell)
    input_size, hidden_size, own = sized(found, hidden, inputs, dim)
    dims, where = found.bind(input_size, hidden_size, **own), measurable(device)
    for text in shape or ["100,16"]:
        steps, batch = shape_of(text)
        members: list[tuple[Job, Choice]] = []
        for first, wants in calls(found, training).items():
            spec = Spec(tuple(sorted(dims.items())), str(dtype), where, wants, training)
            job = compiler.job(found, spec)
            choice = choose(job, steps, batch, engine, again=again)
            members.append((job, choice))
            why = WHY[choice.why] + AGAIN * (choice.why == "remembered")
            title = f"{found.name} T={steps} B={batch}{first}: {why}"
            console.print(table_of(title, choice))
            if not choice.sure:
                console.print(f"[yellow]not sure yet[/]: {UNSURE}")
        if layers > 1:
            stack = [members[0]] + [members[-1]] * (layers - 1)
            console.print(stack_table(stack, steps, batch, workers, interconnect, link))


def find_link(text: str, option: str = "--interconnect") -> Interconnect:
    """What an option names. Raises BadParameter: it is not an interconnect."""
    try:
        return find_interconnect(text)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def calls(cell: Cell, training: bool) -> dict[str, frozenset[str]]:
    """The kinds of calls in a run, and what gets a gradient: a first layer's data get none."""
    if not training:
        return {"": frozenset()}
    weights = cell.differentiated - {entry.name for entry in cell.inputs}
    inputs = frozenset(entry.name for entry in cell.inputs)
    further = {", its input a layer's output": weights | inputs}
    return {", its input data": weights, **further} if weights else further


def stack_table(
    members: list[tuple[Job, Choice]],
    steps: int,
    batch: int,
    workers: int,
    name: str,
    link: Interconnect,
) -> Table:
    """How the layers of a stack run, with what workers who sum their gradients wait for."""
    jobs, choices = [job for job, _ in members], [choice for _, choice in members]
    own = (len(jobs[0].graph.states),) * len(jobs), (len(jobs[0].graph.weights),) * len(jobs)
    choice = choose_together(jobs, choices, steps, batch, Arrangement(*own, False, 0))
    title = f"{len(jobs)} layers of {jobs[0].name} T={steps} B={batch}"
    title += f": {workers} workers, {name} (forecast)" if workers > 1 else ""
    table = Table(title=plain(title), title_justify="left")
    for column in ("schedule", "a training step", "with all-reduce", ""):
        table.add_column(column, justify="left" if column in ("schedule", "") else "right")
    if choice is None or not choice.medians_s:
        refusal = choice.refusals.get(AT_ONCE) if choice else "autograd sees through some layers"
        table.add_row(
            "one after another", "not timed", "", plain(refusal or "nothing else is offered")
        )
        return table
    whole = with_workers(choice, jobs, steps, workers, link)
    best = APART if choice.schedule == APART else min(whole, key=whole.__getitem__)
    for schedule, seconds in sorted(whole.items(), key=lambda item: item[1]):
        alone = f"{choice.medians_s[schedule] * steps * 1e6:.0f} µs"
        label_of = {AT_ONCE: "at once", APART: "one after another, each layer's gradients sent"}
        table.add_row(
            label_of[schedule], alone, f"{seconds * 1e6:.0f} µs", "runs" if schedule == best else ""
        )
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
    table.add_column("times the best", justify="right")
    table.add_column("a step", justify="right")
    table.add_column("")
    chosen = label((choice.engine, choice.schedule))
    medians = dict(sorted(choice.medians_s.items(), key=lambda item: item[1]))
    best = min(medians.values(), default=None)
    for name in dict.fromkeys([*medians, chosen]):
        seconds = medians.get(name)
        ratio = f"{seconds / best:.2f}x" if seconds and best else "not benchmarked"
        time = f"{seconds * 1e6:.0f} µs" if seconds else ""
        table.add_row(plain(name), ratio, time, "runs" if name == chosen else "")
    for name, reason in choice.refusals.items():
        table.add_row(plain(name), "no", "", plain(reason))
    return table
