"""Forecasts of many workers in words, tables and curves."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.report import BenchPage, Plot
from benchmarks.scaling.forecast import Machine, Point, paying
from benchmarks.scaling.joined import Ran
from benchmarks.scaling.links import Link, Nodes
from benchmarks.scaling.times import Measured
from elman.plan.allreduce import Interconnect
from elman.tuning.waiting import waiting_in_words

HEADERS = (
    *("workers", "minibatch of each", "compute", "exposed all-reduce", "step"),
    *("times as fast", "efficiency", ""),
)
CHECKED = (
    *("processes", "minibatch of each", "forecast", "measured", "measured / forecast"),
    "its work over the cores",
)
QUESTION = "Up to how many workers does it pay to share a minibatch?"


@dataclass(frozen=True)
class Checked:
    """A forecast beside a run.

    Attributes:
        point: what was forecast.
        ran: what a step took.
        cores: of the machine.
    """

    point: Point
    ran: Ran
    cores: int

    def words(self) -> list[str]:
        """As :data:`CHECKED` names them."""
        point, took = self.point, self.ran.step_s
        work = self.ran.core_s * point.workers / self.cores
        times = [in_ms(point.step_s), in_ms(took), f"{took / point.step_s:.2f}", in_ms(work)]
        return [str(point.workers), str(point.minibatch), *times]


@dataclass(frozen=True)
class Scaling:
    """What was forecast, and of what.

    Attributes:
        measured: steps of one worker.
        batch: the global minibatch.
        most: workers, at most.
        name: of the interconnect.
        by: what connects workers, or the machine that they share.
        points: by 1, 2, 4, … workers.
        least: share of a step that a doubling has to save.
    """

    measured: Measured
    batch: int
    most: int
    name: str
    by: Link | Machine
    points: list[Point]
    least: float

    @property
    def title(self) -> str:
        """What the table is of."""
        stack = self.measured.stack
        what = f"{stack.layers} layers of {stack.cell}, {stack.hidden} units, T={stack.steps}"
        return (
            f"{what}, {stack.dtype}, global minibatch {self.batch}, {self.interconnect} (forecast)"
        )

    @property
    def interconnect(self) -> str:
        """Its name, latency and bandwidth; of nodes those of both."""
        by = self.by
        if isinstance(by, Machine):
            return f"{self.name}: {numbers(by.memory.wait_s, by.memory.bytes_per_s)}"
        if isinstance(by, Nodes):
            nodes = f"nodes of {by.devices} (inside {of_link(by.inside)})"
            return f"{nodes}, {self.name}: {of_link(by.across)}"
        return f"{self.name}: {of_link(by)}"

    @property
    def best(self) -> Point:
        """The last one that pays."""
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
        who = f"{best.workers} workers" if best.workers > 1 else "one worker"
        text = (
            f"It pays up to {who}, a minibatch of {best.minibatch} each: a step takes "
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
        largest, notes = max(self.measured.times.seconds), []
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


def page_of(found: Scaling, checked: tuple[Checked, ...]) -> BenchPage:
    """What the page shows: the table, curves, and runs beside their forecasts."""
    machine = found.measured.machine
    where = ", ".join(f"{name} {machine[name]}" for name in ("cpu", "cores") if name in machine)
    return BenchPage(
        name="scaling",
        question=" ".join([QUESTION, found.verdict(), *found.notes()]),
        machines=[f"{found.title}, {found.measured.stack.threads} threads; measured on {where}"],
        headers=HEADERS,
        lines=found.lines(),
        ratios={},
        asked={},
        shares={},
        plots=plots_of(found),
        absent={},
        source="Forecast beside runs on the machine",
        claim_headers=CHECKED,
        claims=[one.words() for one in checked],
    )


def plots_of(found: Scaling) -> list[Plot]:
    """A step's parts, speed-up and efficiency over workers; a step over its minibatch."""
    points, seconds = found.points, found.measured.times.seconds
    counts, sizes = [point.workers for point in points], sorted(seconds)
    parts = {
        "step": [point.step_s * 1e3 for point in points],
        "compute": [point.compute_s * 1e3 for point in points],
        "exposed all-reduce": [point.exposed_s * 1e3 or None for point in points],
    }
    fast = {"forecast": [point.speedup for point in points], "ideal": [float(n) for n in counts]}
    efficient = {"forecast": (counts, [point.efficiency for point in points])}
    alone = {"step": (sizes, [seconds[size] * 1e3 for size in sizes])}
    samples = {"samples/s": (sizes, [size / seconds[size] for size in sizes])}
    return [
        Plot("Step by workers", "workers", "ms", "xy", {k: (counts, v) for k, v in parts.items()}),
        Plot("Speed-up", "workers", "times", "xy", {k: (counts, v) for k, v in fast.items()}),
        Plot("Efficiency", "workers", "speed-up per worker", "x", efficient),
        Plot("Step of one worker, measured", "minibatch", "ms", "xy", alone),
        Plot("Throughput of one worker, measured", "minibatch", "samples/s", "xy", samples),
    ]


def of_link(link: Interconnect) -> str:
    """Latency and bandwidth."""
    return numbers(link.latency_s, link.bytes_per_s)


def numbers(latency_s: float, bytes_per_s: float) -> str:
    """Both to three digits."""
    return f"{latency_s * 1e6:.3g} µs, {bytes_per_s / 1e9:.3g} GB/s"


def in_ms(seconds: float) -> str:
    """A time to three digits."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:.0f} ms"
