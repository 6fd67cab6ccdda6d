"""The command ``python -m benchmarks.scaling``: up to how many workers a minibatch pays."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from benchmarks.scaling.forecast import Link, Nodes, Point, paying, scaled
from benchmarks.scaling.times import (
    BUDGET_S,
    Measured,
    Stack,
    measure_times,
    read_times,
    write_times,
)
from elman.cli._options import DType, DTypeOption
from elman.cli._terminal import plain, say, wide_console
from elman.cli.app import run_command
from elman.cli.tune import LINKS, find_link
from elman.errors import InputError, diagnostic
from elman.plan.allreduce import Interconnect
from elman.train.loop.layers import find_sequence_cell
from elman.tuning.waiting import waiting_in_words

HEADERS = (
    *("workers", "minibatch of each", "compute", "exposed all-reduce", "step"),
    *("times as fast", "efficiency", ""),
)
OF_FILE = ("cell", "hidden", "layers", "steps", "dtype", "threads", "seconds")
UNITS, LAYERS, STEPS = 256, 2, 100


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
        str, typer.Option(help=f"What connects workers: {LINKS}")
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
    dtype: DTypeOption = DType.FLOAT32,
    threads: Annotated[
        int, typer.Option(help="Threads of each worker, where it is measured here.", min=1)
    ] = 1,
    seconds: Annotated[
        float, typer.Option(help="Seconds of measuring, without those of compiling.", min=0.1)
    ] = BUDGET_S,
    out: Annotated[Path | None, typer.Option(help="Folder for times.json.")] = None,
) -> None:
    """Forecast up to how many workers a global minibatch pays.

    What a training step of a stack takes on one worker is measured by its minibatch; what summing
    the gradients adds, and what the backward hides of it, is computed.
    """
    console = wide_console()
    link = link_of(context, interconnect, per_node, inside)
    if most_batch is not None and batch > most_batch:
        details = [("most", f"{most_batch} still learns as well, by --most-batch")]
        text = f"a global minibatch of {batch} is too large to learn"
        raise InputError(diagnostic(text, details, f"--batch {most_batch}"))
    if times is None:
        stack = Stack(cell or "gru", hidden, layers, steps, str(dtype), threads)
        find_sequence_cell(stack.cell)
        torch.set_num_threads(threads)
        with console.status("measuring"):
            measured = measure_times(stack, batch, seconds)
        times = (out or Path("scale-out") / f"{datetime.now():%Y%m%d-%H%M%S}") / "times.json"
        write_times(times, measured)
    else:
        if extra := explicit(context, OF_FILE):
            text = f"the file says what was measured: leave {', '.join(extra)} out"
            raise typer.BadParameter(text, param_hint="--times")
        measured = read_times(times)
    points = scaled(measured.times, batch, workers, link)
    scaling = Scaling(measured, batch, workers, interconnect, link, points, least_saved)
    console.print(table(HEADERS, scaling.lines(), scaling.title))
    for line in (scaling.verdict(), *scaling.notes(), f"times: {times}"):
        say(console, line)


def link_of(context: typer.Context, interconnect: str, per_node: int, inside: str) -> Link:
    """What connects workers with a device each.

    Raises:
        BadParameter: not an interconnect, or --inside without nodes of several devices.
    """
    across = find_link(interconnect)
    if per_node > 1:
        return Nodes(per_node, find_link(inside, "--inside"), across)
    if explicit(context, ("inside",)):
        raise typer.BadParameter("of nodes of how many? --per-node 8", param_hint="--inside")
    return across


def explicit(context: typer.Context, names: Collection[str]) -> list[str]:
    """Those options that stand in the call, and do not have their defaults."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [name for name, source in sources.items() if source and source.name != "DEFAULT"]


@dataclass(frozen=True)
class Scaling:
    """A forecast in words.

    Attributes:
        measured: steps of one worker.
        batch: the global minibatch.
        most: workers, at most.
        name: of the interconnect.
        link: what connects workers.
        points: by 1, 2, 4, … workers.
        least: share of a step that a doubling has to save.
    """

    measured: Measured
    batch: int
    most: int
    name: str
    link: Link
    points: list[Point]
    least: float

    @property
    def title(self) -> str:
        """Title of the table: the stack, its minibatch and the interconnect."""
        stack, link, nodes = self.measured.stack, self.link, ""
        if isinstance(link, Nodes):
            nodes, link = f"nodes of {link.devices} (inside {in_words(link.inside)}), ", link.across
        return (
            f"{stack.layers} layers of {stack.cell}, {stack.hidden} units, T={stack.steps}, "
            f"{stack.dtype}, global minibatch {self.batch}, {nodes}{self.name}: {in_words(link)} "
            "(forecast)"
        )

    @property
    def best(self) -> Point:
        """The last point that pays."""
        return paying(self.points, self.least)

    def lines(self) -> list[list[str]]:
        """As :data:`HEADERS` names them; times that rest on no measurement are marked."""
        largest = max(self.measured.times.seconds)
        return [
            [
                str(point.workers),
                str(point.minibatch),
                ("≈ " if point.minibatch > largest else "") + in_ms(point.compute_s),
                in_ms(point.exposed_s),
                in_ms(point.step_s),
                f"{point.speedup:.2f}",
                f"{point.efficiency:.0%}",
                "pays up to here" if point == self.best else "",
            ]
            for point in self.points
        ]

    def verdict(self) -> str:
        """Up to how many workers it pays, in a sentence."""
        best = self.best
        workers = f"{best.workers} workers" if best.workers > 1 else "one worker"
        text = (
            f"It pays up to {workers}, a minibatch of {best.minibatch} each: a step takes "
            f"{in_ms(best.step_s)}, {best.speedup:.3g} times as fast as one worker"
        )
        after = [point for point in self.points if point.workers > best.workers]
        if not after:
            return f"{text}; no more were looked at."
        saved = 1 - after[0].step_s / best.step_s
        change = f"save {saved:.0%}" if saved >= 0 else f"take {-saved:.0%} longer"
        return f"{text}; {after[0].workers} would {change} (asked for: {self.least:.0%} saved)."

    def notes(self) -> list[str]:
        """What a reader of the table should know."""
        largest, notes = max(self.measured.times.seconds), list[str]()
        if self.batch > largest:
            notes.append(
                f"≈: a minibatch of {largest} is the largest that was measured; beyond it a step "
                "is taken to grow in proportion."
            )
        if text := waiting_in_words(self.measured.waited):
            notes.append(text)
        if self.most > self.batch:
            notes.append(f"More than {self.batch} workers would not have a sample each.")
        return notes


def table(headers: tuple[str, ...], lines: list[list[str]], title: str) -> Table:
    """Lay lines out."""
    laid_out = Table(*headers, title=plain(title), title_justify="left")
    for column in laid_out.columns:
        column.justify = "right"
    for line in lines:
        laid_out.add_row(*map(plain, line))
    return laid_out


def in_words(link: Interconnect) -> str:
    """Latency and bandwidth to three digits."""
    return f"{link.latency_s * 1e6:.3g} µs, {link.bytes_per_s / 1e9:.3g} GB/s"


def in_ms(seconds: float) -> str:
    """A time to three digits."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:.0f} ms"


if __name__ == "__main__":
    run_command(scale, "python -m benchmarks.scaling")
