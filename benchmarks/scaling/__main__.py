"""The command ``python -m benchmarks.scaling``: up to how many workers a minibatch pays."""

from __future__ import annotations

from collections.abc import Collection
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
from elman.train.loop.layers import find_sequence_cell
from elman.tuning.allreduce import Interconnect
from elman.tuning.waiting import waiting_in_words

HEADERS = (
    *("workers", "minibatch of each", "compute", "exposed all-reduce", "step"),
    *("times as fast", "efficiency", ""),
)
OF_FILE = ("cell", "hidden", "layers", "steps", "dtype", "threads", "seconds")


def scale(
    context: typer.Context,
    cell: Annotated[str, typer.Argument(help="A cell of the library, or file.py:cell.")] = "gru",
    hidden: Annotated[int, typer.Option(help="Units of each layer.", min=1)] = 256,
    layers: Annotated[int, typer.Option(help="Layers of the stack.", min=1)] = 2,
    steps: Annotated[int, typer.Option(help="Steps of a sequence, T.", min=1)] = 100,
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
    if times is None:
        find_sequence_cell(cell)
        torch.set_num_threads(threads)
        stack = Stack(cell, hidden, layers, steps, str(dtype), threads)
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
    best, largest = paying(points, least_saved), max(measured.times.seconds)
    title = f"{measured.stack}, global minibatch {batch}, {title_of(interconnect, link)} (forecast)"
    console.print(table(HEADERS, [line(point, best, largest) for point in points], title))
    say(console, verdict(points, best, least_saved))
    for note in notes(measured, batch, workers, largest):
        say(console, note)
    say(console, f"times: {times}")


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


def title_of(name: str, link: Link) -> str:
    """An interconnect by its name, with latency and bandwidth."""

    def described(link: Interconnect) -> str:
        return f"{link.latency_s * 1e6:.3g} µs, {link.bytes_per_s / 1e9:.3g} GB/s"

    if isinstance(link, Nodes):
        inside = f"nodes of {link.devices} (inside {described(link.inside)})"
        return f"{inside}, {name}: {described(link.across)}"
    return f"{name}: {described(link)}"


def line(point: Point, best: Point, largest: int) -> list[str]:
    """A point under :data:`HEADERS`; a time that rests on no measurement is marked."""
    return [
        *(str(point.workers), str(point.minibatch)),
        ("≈ " if point.minibatch > largest else "") + in_ms(point.compute_s),
        *(in_ms(point.exposed_s), in_ms(point.step_s)),
        *(f"{point.speedup:.2f}", f"{point.efficiency:.0%}"),
        "pays up to here" if point == best else "",
    ]


def verdict(points: list[Point], best: Point, least: float) -> str:
    """Up to how many workers it pays, in a sentence."""
    workers = f"{best.workers} workers" if best.workers > 1 else "one worker"
    text = (
        f"It pays up to {workers}, a minibatch of {best.minibatch} each: a step takes "
        f"{in_ms(best.step_s)}, {best.speedup:.3g} times as fast as one worker"
    )
    after = next((point for point in points if point.workers > best.workers), None)
    if after is None:
        return f"{text}; no more were looked at."
    saved = 1 - after.step_s / best.step_s
    change = f"save {saved:.0%}" if saved >= 0 else f"take {-saved:.0%} longer"
    return f"{text}; {after.workers} would {change} (asked for: {least:.0%} saved)."


def notes(measured: Measured, batch: int, most: int, largest: int) -> list[str]:
    """What a reader of the table should know."""
    beyond = (
        f"≈: a minibatch of {largest} is the largest that was measured; beyond it a step is taken "
        "to grow in proportion."
    )
    idle = f"More than {batch} workers would not have a sample each."
    busy = waiting_in_words(measured.waited)
    return [*[beyond] * (batch > largest), *[busy] * bool(busy), *[idle] * (most > batch)]


def table(headers: tuple[str, ...], lines: list[list[str]], title: str) -> Table:
    """Lay lines out."""
    laid_out = Table(title=plain(title), title_justify="left")
    for header in headers:
        laid_out.add_column(header, justify="right")
    for cells in lines:
        laid_out.add_row(*map(plain, cells))
    return laid_out


def in_ms(seconds: float) -> str:
    """A time to three digits."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:.0f} ms"


if __name__ == "__main__":
    run_command(scale, "python -m benchmarks.scaling")
