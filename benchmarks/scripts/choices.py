"""How often a busy machine makes ``auto`` choose wrongly, and whether later processes mend it.

    python -m benchmarks.scripts.choices --out DIR [--caches 20] [--processes 3] [--quick]

1. On the machine as it is, every candidate of ten shapes is timed in full, alternating, in three
   processes: the truth is the median of theirs, since where threads and memory lie differs.
2. A load takes one core half of the time at random moments. Under it, for each of several fresh
   tuning caches, some processes one after another choose for all shapes (compiled kernels are
   shared, so that choosing is all that they do).
3. A row per cache, process and shape says what was chosen and how much slower than the best fixed
   schedule that is; the summary counts choices more than 5 % and 15 % slower after each process.

Run the first part while nothing else runs. Any machine with two cores or more will do.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import facts
from benchmarks.programs import program
from elman import cells, compiler
from elman.engines import registry
from elman.measuring.process import environment, run_program
from elman.plan.spec import Spec
from elman.tuning.choose import choose
from elman.tuning.kernels import candidates, kernel_of, label
from elman.tuning.trial import make_trial

PHASE_S = (0.05, 0.5)  # (s) how long the load is on, and off: uniform
LIMIT_S = 600.0  # of one process
ROUNDS, BUDGET_S, TRUTHS = 25, 5.0, 3  # of the truth, per shape, and processes
STRETCH_S = 0.04  # (s) of calls of one candidate, one after another
SLOW, TOO_SLOW = 1.05, 1.15


@dataclass(frozen=True)
class Shape:
    """A training step of one layer."""

    cell: str
    T: int
    B: int
    H: int

    @property
    def name(self) -> str:
        return f"{self.cell} ({self.T},{self.B},{self.H})"

    def job(self) -> Any:
        """As the first layer of a model: x needs no gradient."""
        cell = getattr(cells, self.cell)
        wants = frozenset(weight.name for weight in cell.weights)
        dims = cell.bind(self.H, self.H)
        return compiler.job(cell, Spec(tuple(sorted(dims.items())), wants=wants))


SHAPES = (
    Shape("gru", 10, 1000, 1000),
    Shape("gru", 100, 32, 256),
    Shape("lstm", 100, 32, 256),
    Shape("lstm", 50, 64, 512),
    Shape("gru", 1000, 1, 64),
    Shape("rnn", 100, 4, 128),
    Shape("rnn", 500, 1, 512),
    Shape("lstm_layernorm", 100, 4, 128),
    Shape("mgu", 100, 1, 256),
    Shape("slstm", 50, 16, 128),
)


def truth(shape: Shape) -> dict[str, float]:
    """Median seconds of every candidate over whole calls.

    Each runs a run of calls, as one of a training follows another; the first half of a run
    is not timed, since threads have to wake up after another candidate's. Runs alternate.
    """
    job = shape.job()
    names = tuple(name for name in registry.names() if name != "reference")
    able, _ = candidates(job, names, shape.T, shape.B)
    trial = make_trial(job, shape.T, shape.B)
    kernels = {label(candidate): kernel_of(job, *candidate) for candidate in able}
    times: dict[str, list[float]] = {candidate: [] for candidate in kernels}
    for kernel in kernels.values():
        trial.run(kernel)
    end = time.perf_counter() + BUDGET_S
    for _ in range(ROUNDS):
        for candidate, kernel in kernels.items():
            begin, calls = time.perf_counter(), 0
            while not calls or time.perf_counter() < begin + STRETCH_S / 2:
                trial.run(kernel)
                calls += 1
            for _ in range(calls):
                start = time.perf_counter()
                trial.run(kernel)
                times[candidate].append(time.perf_counter() - start)
        if time.perf_counter() > end:
            break
    return {candidate: median(seconds) for candidate, seconds in times.items()}


def answer(option: str) -> Any:
    """What a process of its own prints."""
    return json.loads(run_program(program("scripts.choices", option), LIMIT_S))


def load() -> None:
    """Take one core half of the time at random moments, until killed."""
    source = random.Random(0)
    while True:
        end = time.perf_counter() + source.uniform(*PHASE_S)
        while time.perf_counter() < end:
            pass
        time.sleep(source.uniform(*PHASE_S))


def choice_for(shape: Shape) -> dict[str, Any]:
    """What ``auto`` chooses for a shape in this process."""
    start = time.perf_counter()
    choice = choose(shape.job(), shape.T, shape.B)
    return {
        "choice": label((choice.engine, choice.schedule)),
        "sure": choice.sure,
        "why": choice.why,
        "seconds": time.perf_counter() - start,
    }


def run(out: Path, caches: int, processes: int) -> list[dict[str, Any]]:
    """The truth, then the choices under load; a row per choice."""
    cache = out / "cache"
    os.environ["ELMAN_CACHE"] = str(cache)
    machine = facts()
    truths = [answer("--truth") for _ in range(TRUTHS)]
    medians = {}
    for name in truths[0]:
        medians[name] = {
            candidate: median(times[name][candidate] for times in truths)
            for candidate in truths[0][name]
        }
        best = min(medians[name].values())
        words = ", ".join(f"{candidate} {s / best:.2f}" for candidate, s in medians[name].items())
        print(f"{name}: best {best * 1e3:.2f} ms; {words}", flush=True)
    rows: list[dict[str, Any]] = [{"machine": machine, "truth": medians, "by process": truths}]
    loading = program("scripts.choices", "--load")
    busy = subprocess.Popen([sys.executable, "-P", *loading.words], env=environment(loading))
    try:
        for number in range(caches):
            shutil.rmtree(cache / "tuning", ignore_errors=True)
            for process in range(processes):
                for name, choice in answer("--choose").items():
                    slower = medians[name][choice["choice"]] / min(medians[name].values())
                    row = {"cache": number, "process": process, "shape": name, "slower": slower}
                    rows.append(row | choice)
            print(f"cache {number}: {summary(rows, processes)[-1]}", flush=True)
    finally:
        busy.kill()
    return rows


def summary(rows: list[dict[str, Any]], processes: int) -> list[str]:
    """A line per process."""
    lines = []
    for process in range(processes):
        choices = [row for row in rows if row.get("process") == process]
        slow = sum(row["slower"] > SLOW for row in choices)
        too_slow = sum(row["slower"] > TOO_SLOW for row in choices)
        sure = sum(row["sure"] for row in choices)
        seconds = median(row["seconds"] for row in choices)
        lines.append(
            f"after process {process + 1}: {len(choices)} choices, {slow} "
            f"({slow / len(choices):.1%}) more than 5 % slower than the best, {too_slow} more than "
            f"15 %; {sure} sure; {seconds:.2f} s per choice (median)"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("bench-out/choices"))
    parser.add_argument("--caches", type=int, default=20)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two caches")
    for inside in ("--load", "--choose", "--truth"):
        parser.add_argument(inside, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load()
    if options.choose or options.truth:
        of_shape = choice_for if options.choose else truth
        print(json.dumps({shape.name: of_shape(shape) for shape in SHAPES}))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    caches = 2 if options.quick else options.caches
    rows = run(options.out.resolve(), caches, options.processes)
    path = options.out / "choices.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print("\n".join(summary(rows, options.processes)))
    print(f"rows: {path}")


if __name__ == "__main__":
    main()
