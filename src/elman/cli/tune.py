"""Measure who runs a cell fastest at given sizes, and remember it for every later process."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from elman import compiler
from elman.cli.explain import Device, DType, measurable, sizes
from elman.explaining import WHY
from elman.frontend.cell import Cell
from elman.plan.spec import Spec
from elman.train.layers import find_cell
from elman.tuning.choose import Choice, choose
from elman.tuning.kernels import label

PIPED_WIDTH = 160
AGAIN = " (--again benchmarks anew)"
UNSURE = (
    "other programs took the cores, or a call is long. What was benchmarked is kept, and the next "
    "process adds to it."
)


def tune(
    cell: Annotated[str, typer.Argument(help="gru, lstm, another cell, or file.py:cell.")],
    shape: Annotated[
        list[str] | None, typer.Option(help="T,B; may be given several times.")
    ] = None,
    hidden: Annotated[int, typer.Option(help="Units: the first state's size.")] = 128,
    inputs: Annotated[int | None, typer.Option(help="Size of the input; as --hidden.")] = None,
    dim: Annotated[list[str] | None, typer.Option(help="Another size of the cell: P=32.")] = None,
    dtype: Annotated[DType, typer.Option(help="Of the computation.")] = DType.FLOAT32,
    device: Annotated[Device, typer.Option(help="Where it is to run.")] = Device.CPU,
    engine: Annotated[str, typer.Option(help="auto, or the name of an engine.")] = "auto",
    training: Annotated[bool, typer.Option(help="With a backward.")] = True,
    again: Annotated[
        bool, typer.Option("--again", help="Even if it was benchmarked before.")
    ] = False,
) -> None:
    """Measure engines and schedules for a cell at the sizes of a run to come.

    Both as a first layer, whose input is data, and as one whose input gets a gradient.

    The winner of each size bucket (powers of two of T and B) is remembered; training then starts at
    once.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    found = find_cell(cell)
    dims, where = found.bind(inputs or hidden, hidden, **sizes(dim or [])), measurable(device)
    for text in shape or ["100,16"]:
        steps, batch = shape_of(text)
        for first, wants in calls(found, training).items():
            spec = Spec(tuple(sorted(dims.items())), str(dtype), where, wants, training)
            choice = choose(compiler.job(found, spec), steps, batch, engine, again=again)
            why = WHY[choice.why] + AGAIN * (choice.why == "remembered")
            title = f"{found.name} T={steps} B={batch}{first}: {why}"
            console.print(table_of(title, choice))
            if not choice.sure:
                console.print(f"[yellow]not sure yet[/]: {UNSURE}")


def calls(cell: Cell, training: bool) -> dict[str, frozenset[str]]:
    """The kinds of calls in a run, and what gets a gradient: a first layer's data get none."""
    if not training:
        return {"": frozenset()}
    weights = frozenset(entry.name for entry in cell.weights)
    inputs = frozenset(entry.name for entry in cell.inputs)
    further = {", its input a layer's output": weights | inputs}
    return {", its input data": weights, **further} if weights else further


def shape_of(text: str) -> tuple[int, int]:
    """Read ``100,16``."""
    steps, comma, batch = text.partition(",")
    if not (comma and steps.isdecimal() and batch.isdecimal() and int(steps) and int(batch)):
        raise typer.BadParameter(f"{text!r} is not of the form 100,16", param_hint="--shape")
    return int(steps), int(batch)


def table_of(title: str, choice: Choice) -> Table:
    """Candidates by time, then those that cannot run, with the reason."""
    table = Table(title=title, title_justify="left")
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
        table.add_row(name, ratio, time, "runs" if name == chosen else "")
    for name, reason in choice.refusals.items():
        table.add_row(name, "no", "", reason)
    return table
