"""The command ``python -m benchmarks.scaling``: up to how many workers a minibatch pays."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.report import write_benchmark
from benchmarks.scaling.forecast import Machine, forecast, scaled
from benchmarks.scaling.joined import (
    STEP_S,
    measure_contention,
    measure_joined,
    measure_memory,
    measure_sharing,
)
from benchmarks.scaling.links import Link, Nodes
from benchmarks.scaling.times import (
    BUDGET_S,
    Measured,
    Stack,
    measure_times,
    read_times,
    write_times,
)
from benchmarks.scaling.words import CHECKED, HEADERS, Checked, Scaling, page_of
from elman.cli._options import DType, DTypeOption
from elman.cli._terminal import plain, say, wide_console
from elman.cli.app import run_command
from elman.cli.tune import LINKS, find_link
from elman.errors import InputError, RunError, diagnostic
from elman.plan.allreduce import INTERCONNECTS
from elman.train.loop.layers import find_sequence_cell
from elman.tuning.facts import cores, processor

MEMORY = "memory"
OF_FILE = ("cell", "hidden", "layers", "steps", "dtype", "threads")
UNITS, LAYERS, STEPS = 256, 2, 100
AT_ONCE = (2, 4)  # processes that are measured at once, where workers share the machine


def scale(
    context: typer.Context,
    cell: Annotated[
        str | None, typer.Argument(help="gru (default), another cell, or file.py:cell.")
    ] = None,
    hidden: Annotated[int, typer.Option(help="Units of each layer.", min=1)] = UNITS,
    layers: Annotated[int, typer.Option(help="Layers of the stack.", min=1)] = LAYERS,
    steps: Annotated[int, typer.Option(help="Steps of a sequence, T.", min=1)] = STEPS,
    batch: Annotated[int, typer.Option(help="Global minibatch.", min=1)] = 512,
    workers: Annotated[int, typer.Option(help="Largest number of workers.", min=1)] = 1024,
    interconnect: Annotated[
        str,
        typer.Option(
            help=f"What connects workers: {LINKS} {MEMORY}: measured processes of this machine."
        ),
    ] = "infiniband",
    per_node: Annotated[int, typer.Option(help="Devices of a node.", min=1)] = 1,
    inside: Annotated[
        str, typer.Option(help=f"What connects the devices of a node: {LINKS}")
    ] = "nvlink",
    times: Annotated[
        Path | None, typer.Option(help="Read times.json of an earlier call instead of measuring.")
    ] = None,
    most_batch: Annotated[
        int | None, typer.Option(help="Largest global minibatch that still learns.", min=1)
    ] = None,
    least_saved: Annotated[
        float, typer.Option(help="Share of a step that a doubling must save.", min=0, max=1)
    ] = 0.1,
    check: Annotated[
        str | None, typer.Option(help="Also run so many processes here, such as 2,4.")
    ] = None,
    dtype: DTypeOption = DType.FLOAT32,
    threads: Annotated[
        int, typer.Option(help="Threads of each worker, where it is measured here.", min=1)
    ] = 1,
    seconds: Annotated[
        float, typer.Option(help="Seconds of measuring, without those of compiling.", min=0.1)
    ] = BUDGET_S,
    out: Annotated[Path | None, typer.Option(help="Folder for the page and times.json.")] = None,
) -> None:
    """Forecast up to how many workers a global minibatch pays.

    What a training step of a stack takes on one worker is measured by its minibatch; what summing
    the gradients adds, and what the backward hides of it, is computed.
    """
    console = wide_console()
    counts = counts_of(check)
    link = link_of(context, interconnect, per_node, inside)
    if most_batch is not None and batch > most_batch:
        details = [("most", f"{most_batch} still learns as well, by --most-batch")]
        text = f"a global minibatch of {batch} is too large to learn"
        raise InputError(diagnostic(text, details, f"--batch {most_batch}"))
    folder = out or Path("scale-out") / f"{datetime.now():%Y%m%d-%H%M%S}"
    if times is None:
        stack = Stack(cell or "gru", hidden, layers, steps, str(dtype), threads)
        find_sequence_cell(stack.cell)
        make_folder(folder)
        at_once = {*AT_ONCE, *counts} if counts or link is None else set()
        measured = measure_here(console, stack, batch, seconds, at_once)
        write_times(folder / "times.json", measured)
    else:
        if said := given(context, (*OF_FILE, "seconds")):
            text = f"the file says what was measured: leave {', '.join(said)} out"
            raise typer.BadParameter(text, param_hint="--times")
        measured = read_times(times)
        if counts:
            check_same_machine(measured)
        make_folder(folder)
    here = None
    if counts or link is None:
        with console.status("measuring sums"):
            here = measured.shared(cores(), measure_memory())
    by = link or here
    assert by is not None, "it is found or measured"
    points = scaled(measured.times, batch, workers, by)
    found = Scaling(measured, batch, workers, interconnect, by, points, least_saved)
    tell(console, found)
    checked = tuple(
        checked_by(console, measured, batch, count, here) for count in counts if here is not None
    )
    if checked:
        console.print(table(CHECKED, [one.words() for one in checked], "Forecast beside runs here"))
    page = write_benchmark(folder / "scale.html", page_of(found, checked))
    if times is None:
        say(console, f"times: {folder / 'times.json'}")
    say(console, f"page: {page}")


def link_of(context: typer.Context, interconnect: str, per_node: int, inside: str) -> Link | None:
    """What connects workers with a device each; None if they are processes of this machine.

    Raises:
        BadParameter: not an interconnect, or nodes and --inside do not go together.
    """
    if interconnect == MEMORY:
        if said := given(context, ("per_node", "inside")):
            text = f"all workers are on this machine: --interconnect {', '.join(INTERCONNECTS)}"
            raise typer.BadParameter(text, param_hint=f"--{said[0].replace('_', '-')}")
        return None
    across = find_link(interconnect)
    if per_node > 1:
        return Nodes(per_node, find_link(inside, "--inside"), across)
    if given(context, ("inside",)):
        raise typer.BadParameter("of nodes of how many? --per-node 8", param_hint="--inside")
    return across


def make_folder(path: Path) -> None:
    """Make the folder of the results, before anything is measured in vain.

    Raises:
        RunError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        details = [("path", str(path)), ("error", str(error.strerror))]
        raise RunError(diagnostic("the folder cannot be made", details)) from error


def counts_of(text: str | None) -> list[int]:
    """Read ``2,4``.

    Raises:
        BadParameter: it is something else.
    """
    words = text.split(",") if text is not None else []
    if not all(word.isdecimal() and int(word) > 1 for word in words):
        raise typer.BadParameter(f"{text!r} is not of the form 2,4", param_hint="--check")
    return [int(word) for word in words]


def given(context: typer.Context, names: Collection[str]) -> list[str]:
    """Those options that a call gives."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [name for name, one in sources.items() if one is not None and one.name != "DEFAULT"]


def check_same_machine(measured: Measured) -> None:
    """Refuse to compare runs here with times of another machine, or of a cell that is not here.

    Raises:
        InputError, RunError: the times are of another one.
    """
    find_sequence_cell(measured.stack.cell)
    there = (measured.machine.get("cpu"), measured.machine.get("cores"))
    if there != (processor(), cores()):
        details = [
            ("times", f"{there[0]}, {there[1]} cores"),
            ("here", f"{processor()}, {cores()}"),
        ]
        hint = "leave --check out, or --times"
        raise InputError(diagnostic("the times are of another machine", details, hint))


def measure_here(
    console: Console, stack: Stack, batch: int, seconds: float, at_once: Collection[int]
) -> Measured:
    """Time the stack on as many threads as a worker has.

    Args:
        at_once: how many processes are measured at once, too.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(stack.threads)
    try:
        with console.status("measuring"):
            measured = measure_times(stack, batch, seconds, measure_sharing(stack))
    finally:
        torch.set_num_threads(before)
    contention = {}
    for processes in sorted(count for count in at_once if count <= batch):
        minibatch = math.ceil(batch / processes)
        with console.status(f"measuring {processes} processes at once, each by itself"):
            contended_s = measure_contention(stack, minibatch, processes)
        contention[str(processes)] = contended_s / measured.times.compute_s(minibatch)
    return replace(measured, contention=contention)


def checked_by(
    console: Console, measured: Measured, batch: int, workers: int, here: Machine
) -> Checked:
    """Run so many processes here, beside what is forecast of them."""
    point = forecast(measured.times, batch, workers, here)
    with console.status(f"running {workers} processes"):
        ran = measure_joined(measured.stack, point.minibatch, workers, STEP_S)
    return Checked(point, ran, cores())


def tell(console: Console, found: Scaling) -> None:
    """The table, and what follows from it."""
    console.print(table(HEADERS, found.lines(), found.title))
    for line in (found.verdict(), *found.notes()):
        say(console, line)


def table(headers: tuple[str, ...], lines: list[list[str]], title: str) -> Table:
    """Lay lines out."""
    made = Table(*headers, title=plain(title), title_justify="left")
    for column in made.columns:
        column.justify = "right"
    for line in lines:
        made.add_row(*map(plain, line))
    return made


if __name__ == "__main__":
    run_command(scale, "python -m benchmarks.scaling")
