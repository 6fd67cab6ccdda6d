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

LIMIT_S = 600.0  # of one process
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
    taken: dict[str, list[float]] = {who: [] for who in kernels}
    for kernel in kernels.values():
        trial.run(kernel)
    end = time.perf_counter() + BUDGET_S
    for _ in range(ROUNDS):
        for who, kernel in kernels.items():
            begun, calls = time.perf_counter(), 0
            while not calls or time.perf_counter() < begun + STRETCH_S / 2:
                trial.run(kernel)
                calls += 1
            for _ in range(calls):
                start = time.perf_counter()
                trial.run(kernel)
                taken[who].append(time.perf_counter() - start)
        if time.perf_counter() > end:
            break
    return {who: median(seconds) for who, seconds in taken.items()}


def truths() -> None:
    """The truth as this process sees it; JSON on stdout."""
    print(json.dumps({shape.name: truth(shape) for shape in SHAPES}))


def asked(what: str) -> Any:
    """What a process of its own answers."""
    return json.loads(run_program(program("scripts.choices", what), LIMIT_S))


def load() -> None:
    """Take one core half of the time at random moments, until killed."""
    source = random.Random(0)
    while True:
        end = time.perf_counter() + source.uniform(*PHASE_S)
        while time.perf_counter() < end:
            pass
        time.sleep(source.uniform(*PHASE_S))


def chosen() -> None:
    """Choose for all shapes, in a process of its own; JSON on stdout."""
    told = {}
    for shape in SHAPES:
        start = time.perf_counter()
        choice = choose(shape.job(), shape.T, shape.B)
        told[shape.name] = {
            "choice": label((choice.engine, choice.schedule)),
            "sure": choice.sure,
            "why": choice.why,
            "seconds": time.perf_counter() - start,
        }
    print(json.dumps(told))


def run(out: Path, caches: int, processes: int) -> list[dict[str, Any]]:
    """The truth, then the choices under load; a row per choice."""
    kernels = out / "cache" / "kernels"
    os.environ["ELMAN_CACHE"] = str(kernels.parent)
    about = facts()
    seen = [asked("--truth") for _ in range(TRUTHS)]
    true = {}
    for name in seen[0]:
        true[name] = {who: median(one[name][who] for one in seen) for who in seen[0][name]}
        best = min(true[name].values())
        words = ", ".join(f"{who} {s / best:.2f}" for who, s in true[name].items())
        print(f"{name}: best {best * 1e3:.2f} ms; {words}", flush=True)
    rows: list[dict[str, Any]] = [{"machine": about, "truth": true, "by process": seen}]
    loading = program("scripts.choices", "--load")
    busy = subprocess.Popen([sys.executable, "-P", *loading.words], env=environment(loading))
    try:
        for cache in range(caches):
            folder = out / "cache"
            shutil.rmtree(folder / "tuning", ignore_errors=True)
            for process in range(processes):
                for name, told in asked("--choose").items():
                    times = true[name]
                    slower = times[told["choice"]] / min(times.values())
                    row = {"cache": cache, "process": process, "shape": name, "slower": slower}
                    rows.append(row | told)
            print(f"cache {cache}: {summary(rows, processes)[-1]}", flush=True)
    finally:
        busy.kill()
    return rows


def summary(rows: list[dict[str, Any]], processes: int) -> list[str]:
    """A line per process."""
    told = []
    for process in range(processes):
        own = [row for row in rows if row.get("process") == process]
        if not own:
            continue
        slow = sum(row["slower"] > SLOW for row in own)
        too = sum(row["slower"] > TOO_SLOW for row in own)
        sure = sum(row["sure"] for row in own)
        seconds = median(row["seconds"] for row in own)
        told.append(
            f"after process {process + 1}: {len(own)} choices, {slow} ({slow / len(own):.1%}) more "
            f"than 5 % slower than the best, {too} more than 15 %; {sure} sure; "
            f"{seconds:.2f} s per choice (median)"
        )
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("bench-out/choices"))
    parser.add_argument("--caches", type=int, default=20)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="two caches")
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--choose", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--truth", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        load()
    if given.choose:
        return chosen()
    if given.truth:
        return truths()
    given.out.mkdir(parents=True, exist_ok=True)
    rows = run(given.out.resolve(), 2 if given.quick else given.caches, given.processes)
    path = given.out / "choices.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print("\n".join(summary(rows, given.processes)))
    print(f"rows: {path}")
    return None


if __name__ == "__main__":
    main()
