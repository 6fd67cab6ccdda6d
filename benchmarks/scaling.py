"""Up to how many workers does a global minibatch pay? ``python -m benchmarks.scaling``.

Strong scaling (G. Diamos, "Persistent RNNs", 2016, slides): each worker computes its part of the
minibatch, then all sum their gradients. Compute stops shrinking where a minibatch is too small to
use a worker well; the all-reduce never shrinks. Steps of one worker are measured, or read from a
file that another machine has written; sums of gradients are computed.
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.allreduce import INTERCONNECTS, Interconnect, find_interconnect, step_s
from benchmarks.machine import facts
from elman.cell_files import find_sequence_cell
from elman.cli._options import DTypeOption
from elman.cli._terminal import plain, say, wide_console
from elman.cli.app import run_command
from elman.errors import InputError, RunError, diagnostic
from elman.files import write_atomically
from elman.measuring.timing import WARM_UP, quartiles, time_side_by_side
from elman.train.loop.config import Config
from elman.train.loop.layers import recurrent
from elman.train.run.stored import DamageError, Positive, Range, Share, decode, read_object
from elman.tuning.machine import Waiting, describe_waiting

BUDGET_S, SHARING_S = 30.0, 6.0  # for all minibatches; for what sharing costs beside sums
LEAST_ROUNDS = 3
LINKS = f"{', '.join(INTERCONNECTS)}, or LATENCY_US,GBYTE_S."
BEFORE = 2 + WARM_UP  # calls of each minibatch before the rounds begin
HEADERS = (
    *("workers", "minibatch of each", "compute", "exposed all-reduce", "step"),
    *("times as fast", "efficiency", ""),
)
OF_FILE = ("cell", "hidden", "layers", "steps", "dtype", "threads", "seconds")


@dataclass(frozen=True)
class Stack:
    """A stack to be scaled: layers of a cell, each as wide as its input, over T steps."""

    cell: str
    hidden: int
    layers: int
    steps: int
    dtype: str
    threads: int

    def __str__(self) -> str:
        layers = f"{self.layers} layers of {self.cell}, {self.hidden} units"
        return f"{layers}, T={self.steps}, {self.dtype}"

    def module(self) -> nn.Module:
        """The layers, their weights drawn from a generator of their own."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            config = Config(cell=self.cell, hidden=self.hidden)
            module = recurrent(config, self.hidden, self.layers)
        return module.to(getattr(torch, self.dtype))

    def step(self, module: nn.Module, minibatch: int) -> Callable[[], None]:
        """A forward and backward on random data [T, B, H], without gradients of an earlier one.

        Args:
            module: of :meth:`module`, or what wraps it.
            minibatch: B.
        """
        source, dtype = torch.Generator().manual_seed(minibatch), getattr(torch, self.dtype)
        x = torch.randn(self.steps, minibatch, self.hidden, generator=source).to(dtype)
        with torch.no_grad():
            dy = torch.randn(module(x)[0].shape, generator=source).to(dtype)

        def run() -> None:
            module.zero_grad()
            torch.autograd.backward(module(x)[0], dy)

        return run


@dataclass(frozen=True)
class Times:
    """Training steps of a stack on one worker, by minibatch, and the machine that measured them.

    Attributes:
        stack: what was computed.
        gradients: bytes of each layer's gradients, the first layer first.
        seconds: medians of forward and backward, by minibatch.
        machine: where.
        sharing_s: what it costs each of several workers to have others, sums aside (s): gradients
            are gathered into messages, and put back.
        waited: share of the time for which threads wanted a core and had none.
    """

    stack: Stack
    gradients: list[Positive]
    seconds: dict[str, Positive]
    machine: dict[str, Any]
    sharing_s: Annotated[float, Range(0, 1e9)] = 0.0
    waited: Share = 0.0

    def __post_init__(self) -> None:
        wrong = [size for size in self.seconds if not (size.isdecimal() and int(size))]
        if wrong or not self.seconds:
            raise ValueError(f'seconds: by minibatch, as in "1", not {", ".join(wrong) or "{}"}')

    @property
    def largest(self) -> int:
        """The largest minibatch that was measured."""
        return max(map(int, self.seconds))

    def compute_s(self, minibatch: int) -> float:
        """Seconds at any minibatch: in proportion above the largest measured, on a line between
        two, and below the smallest what that takes."""
        seconds = {int(size): time_s for size, time_s in self.seconds.items()}
        sizes = sorted(seconds)
        place = bisect_left(sizes, minibatch)
        if place == len(sizes):
            return seconds[sizes[-1]] * minibatch / sizes[-1]
        above, below = sizes[place], sizes[max(0, place - 1)]
        if above in (minibatch, below):
            return seconds[above]
        share = (minibatch - below) / (above - below)
        return seconds[below] * (1 - share) + seconds[above] * share


@dataclass(frozen=True)
class Nodes:
    """Interconnect of devices in nodes, as many in each.

    A ring inside each node leaves the node's sum of n / D bytes with each of its D devices, these
    are summed over nodes through the node's own link, and a ring inside hands the parts round.
    """

    devices: int
    inside: Interconnect
    across: Interconnect

    def allreduce_s(self, size: float, workers: int) -> float:
        """Seconds of an all-reduce of so many bytes."""
        inside = self.inside.ring_s(size, min(workers, self.devices))
        return inside + self.across.allreduce_s(size, math.ceil(workers / self.devices))


Link = Interconnect | Nodes


@dataclass(frozen=True)
class Point:
    """A training step by so many workers.

    Attributes:
        minibatch: of each; the largest where they differ.
        compute_s: forward, backward and what sharing costs beside sums (s).
        step_s: until all gradients are summed (s).
        speedup: times as fast as one worker with the whole minibatch.
    """

    workers: int
    minibatch: int
    compute_s: float
    step_s: float
    speedup: float


def scaled(times: Times, batch: int, most: int, link: Link) -> list[Point]:
    """Steps of a global minibatch by 1, 2, 4, … workers, as many as are allowed and have a sample
    each; of nodes by 1, 2, 4, … devices of one, then by 1, 2, 4, … nodes."""
    devices = link.devices if isinstance(link, Nodes) else 1
    most = min(most, batch)
    counts = [*powers(min(most, devices - 1)), *(devices * n for n in powers(most // devices))]
    points = []
    for workers in counts:
        minibatch = math.ceil(batch / workers)
        compute = times.compute_s(minibatch) + (times.sharing_s if workers > 1 else 0.0)
        step = step_s(times.gradients, compute, workers, link)
        points.append(Point(workers, minibatch, compute, step, times.compute_s(batch) / step))
    return points


def powers(most: int) -> Iterator[int]:
    """1, 2, 4, … up to so many."""
    return (2**power for power in range(most.bit_length()))


def paying(points: list[Point], least: float) -> Point:
    """The last point before the first doubling that saves less than a share of the step."""
    for before, after in pairwise(points):
        if after.step_s > (1 - least) * before.step_s:
            return before
    return points[-1]


def measure_times(stack: Stack, batch: int, seconds: float = BUDGET_S) -> Times:
    """Time steps of minibatches 1, 2, 4, … in alternating rounds; the median of each counts.

    A minibatch whose step would take more than its share of the time ends the row.

    Args:
        stack: what is computed.
        batch: the largest minibatch.
        seconds: for all of them, compiling aside (s).
    """
    module = stack.module()
    runs: dict[str, Callable[[], object]] = {}
    round_s = 0.0
    for minibatch in powers(batch):
        runs[str(minibatch)] = run = stack.step(module, minibatch)
        run()
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        round_s += took
        # The next one takes twice as long, or less.
        if (round_s + 2 * took) * (BEFORE + LEAST_ROUNDS) > seconds:
            break
    waiting = Waiting()
    samples = time_side_by_side(runs, max(0.0, seconds - BEFORE * round_s), LEAST_ROUNDS)
    waited = waiting.share()
    medians = {size: quartiles(sample.steady).median for size, sample in samples.items()}
    gradients = [0.0] * stack.layers
    for name, parameter in module.named_parameters():
        gradients[int(name.rpartition("_l")[2])] += parameter.nbytes
    return Times(stack, gradients, medians, facts(), measure_sharing(stack), waited)


def measure_sharing(stack: Stack, seconds: float = SHARING_S) -> float:
    """What DistributedDataParallel adds to a training step without another process (s): steps of
    one sample, of which the difference is most, with and without the wrapper by turns."""
    if not dist.is_available():  # nor would its workers share anything
        return 0.0
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, world_size=1, rank=0)
    try:
        modules = {"alone": stack.module(), "wrapped": DistributedDataParallel(stack.module())}
        runs = {name: stack.step(module, 1) for name, module in modules.items()}
        samples = time_side_by_side(runs, seconds, LEAST_ROUNDS)
    finally:
        dist.destroy_process_group()
    pairs = zip(samples["wrapped"].steady, samples["alone"].steady, strict=True)
    return max(0.0, median(wrapped - alone for wrapped, alone in pairs))


def read_times(path: Path) -> Times:
    """The times that another call has stored. Raises RunError: no such file, or it is another."""
    try:
        content = read_object(path)
        if content is None:
            raise DamageError("there is no such file")
        times: Times = decode(Times, content)
    except DamageError as error:
        details = [("path", str(path)), ("found", str(error))]
        hint = "times.json of a call of python -m benchmarks.scaling without --times"
        raise RunError(diagnostic("times cannot be read", details, hint)) from error
    return times


def write_times(path: Path, times: Times) -> None:
    """Store times for calls on other machines. Raises RunError: the disk does not take them."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(times), indent=1).encode() + b"\n", durable=True)
    except OSError as error:
        details = [("path", str(path)), ("error", str(error.strerror))]
        raise RunError(diagnostic("times cannot be written", details)) from error


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
    dtype: DTypeOption = "float32",
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
    link: Link = find_link(interconnect)
    if per_node > 1:
        link = Nodes(per_node, find_link(inside, "--inside"), link)
    elif explicit(context, ("inside",)):
        raise typer.BadParameter("of nodes of how many? --per-node 8", param_hint="--inside")
    if times is None:
        find_sequence_cell(cell)
        torch.set_num_threads(threads)
        stack = Stack(cell, hidden, layers, steps, dtype, threads)
        with console.status("measuring"):
            measured = measure_times(stack, batch, seconds)
        times = (out or Path("scale-out") / f"{datetime.now():%Y%m%d-%H%M%S}") / "times.json"
        write_times(times, measured)
    else:
        if extra := explicit(context, OF_FILE):
            text = f"the file says what was measured: leave {', '.join(extra)} out"
            raise typer.BadParameter(text, param_hint="--times")
        measured = read_times(times)
    points = scaled(measured, batch, workers, link)
    best = paying(points, least_saved)
    title = f"{measured.stack}, global minibatch {batch}, {title_of(interconnect, link)} (forecast)"
    console.print(table([line(point, best, measured.largest) for point in points], title))
    say(console, verdict(points, best, least_saved))
    for note in notes(measured, batch, workers):
        say(console, note)
    say(console, f"times: {times}")


def find_link(text: str, option: str = "--interconnect") -> Interconnect:
    """Interconnect that an option names. Raises BadParameter: it is none."""
    try:
        return find_interconnect(text)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def explicit(context: typer.Context, names: Collection[str]) -> list[str]:
    """Names of the options that the call sets."""
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
        *(in_ms(point.step_s - point.compute_s), in_ms(point.step_s)),
        *(f"{point.speedup:.2f}", f"{point.speedup / point.workers:.0%}"),
        "pays up to here" if point == best else "",
    ]


def table(lines: list[list[str]], title: str) -> Table:
    """Lay lines out under :data:`HEADERS`."""
    laid_out = Table(title=plain(title), title_justify="left")
    for header in HEADERS:
        laid_out.add_column(header, justify="right")
    for cells in lines:
        laid_out.add_row(*map(plain, cells))
    return laid_out


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


def notes(times: Times, batch: int, most: int) -> Iterator[str]:
    """Notes below the table."""
    if batch > times.largest:
        yield (
            f"≈: a minibatch of {times.largest} is the largest that was measured; beyond it a step "
            "is taken to grow in proportion."
        )
    if busy := describe_waiting(times.waited):
        yield busy
    if most > batch:
        yield f"More than {batch} workers would not have a sample each."


def in_ms(seconds: float) -> str:
    """A time to three digits."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:.0f} ms"


if __name__ == "__main__":
    run_command(scale, "python -m benchmarks.scaling")
