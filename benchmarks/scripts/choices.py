"""How often a busy machine makes ``auto`` choose wrongly, and whether later processes correct it.

    python -m benchmarks.scripts.choices --out DIR [--caches 20] [--processes 3]

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
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import facts
from benchmarks.programs import environment, program, run_program
from benchmarks.rows import append_row
from elman import cells, compiler
from elman.engines import registry
from elman.measuring.timing import time_side_by_side
from elman.plan.spec import Spec
from elman.tuning.choose import choose
from elman.tuning.kernels import candidates, kernel_of, label
from elman.tuning.trial import make_trial

PHASE_S = (0.05, 0.5)  # (s) how long the load is on, and off: uniform
LIMIT_S = 600.0  # of one process
ROUNDS, BUDGET_S, TRUTHS = 5, 5.0, 3  # of the truth, per shape, and processes
SLOW, TOO_SLOW = 1.05, 1.15
Shape = tuple[str, int, int, int]  # cell, T, B, H: a training step of one layer
SHAPES: tuple[Shape, ...] = (
    ("gru", 10, 1000, 1000),
    ("gru", 100, 32, 256),
    ("lstm", 100, 32, 256),
    ("lstm", 50, 64, 512),
    ("gru", 1000, 1, 64),
    ("rnn", 100, 4, 128),
    ("rnn", 500, 1, 512),
    ("lstm_layernorm", 100, 4, 128),
    ("mgu", 100, 1, 256),
    ("slstm", 50, 16, 128),
)


def job_of(shape: Shape) -> Any:
    """Job of a model's first layer: x needs no gradient."""
    cell, H = getattr(cells, shape[0]), shape[-1]
    wants = frozenset(weight.name for weight in cell.weights)
    return compiler.job(cell, Spec(tuple(sorted(cell.bind(H, H).items())), wants=wants))


def truth(shape: Shape) -> dict[str, float]:
    """Median seconds of every candidate over calls in a row, runs of calls alternating."""
    job, (_, T, B, _) = job_of(shape), shape
    names = tuple(name for name in registry.names() if name != "reference")
    able, _ = candidates(job, names, T, B)
    trial = make_trial(job, T, B)
    kernels = {label(candidate): kernel_of(job, *candidate) for candidate in able}
    runs = {name: lambda kernel=kernel: trial.run(kernel) for name, kernel in kernels.items()}
    samples = time_side_by_side(runs, BUDGET_S, ROUNDS)
    return {candidate: median(sample.steady) for candidate, sample in samples.items()}


def choice_for(shape: Shape) -> dict[str, Any]:
    """The choice of ``auto`` for a shape in this process."""
    start = time.perf_counter()
    choice = choose(job_of(shape), *shape[1:3])
    return {
        "choice": label((choice.engine, choice.schedule)),
        "sure": choice.sure,
        "why": choice.why,
        "seconds": time.perf_counter() - start,
    }


def load() -> None:
    """Take one core half of the time at random moments, until killed."""
    source = random.Random(0)
    while True:
        end = time.perf_counter() + source.uniform(*PHASE_S)
        while time.perf_counter() < end:
            pass
        time.sleep(source.uniform(*PHASE_S))


def answer(option: str) -> Any:
    """Parsed output of a process of its own."""
    return json.loads(run_program(program("scripts.choices", option), LIMIT_S))


def run(out: Path, caches: int, processes: int) -> list[dict[str, Any]]:
    """The truth, then the choices under load; a row per choice."""
    cache, path = out / "cache", out / "choices.jsonl"
    os.environ["ELMAN_CACHE"] = str(cache)
    machine = facts()
    truths = [answer("--truth") for _ in range(TRUTHS)]
    medians = {}
    for name, times in truths[0].items():
        medians[name] = {
            candidate: median(process_times[name][candidate] for process_times in truths)
            for candidate in times
        }
        best = min(medians[name].values())
        words = ", ".join(f"{candidate} {s / best:.2f}" for candidate, s in medians[name].items())
        print(f"{name}: best {best * 1e3:.2f} ms; {words}", flush=True)
    append_row(path, {"machine": machine, "truth": medians, "by process": truths})
    rows = []
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
                    append_row(path, rows[-1])
            print(f"cache {number}: {summary(rows, process)}", flush=True)
    finally:
        busy.kill()
    return rows


def summary(rows: list[dict[str, Any]], process: int) -> str:
    """Count the slow choices of the n-th process over all caches."""
    choices = [row for row in rows if row["process"] == process]
    slow = sum(row["slower"] > SLOW for row in choices)
    too_slow = sum(row["slower"] > TOO_SLOW for row in choices)
    seconds = median(row["seconds"] for row in choices)
    return (
        f"after process {process + 1}: {len(choices)} choices, {slow} "
        f"({slow / len(choices):.1%}) more than 5 % slower than the best, {too_slow} more than "
        f"15 %; {sum(row['sure'] for row in choices)} sure; {seconds:.2f} s per choice (median)"
    )


def main() -> None:
    """Measure and print; or do what a process of its own does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("bench-out/choices"))
    parser.add_argument("--caches", type=int, default=20)
    parser.add_argument("--processes", type=int, default=3)
    for inside in ("--load", "--choose", "--truth"):
        parser.add_argument(inside, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load()
    if options.choose or options.truth:
        do = choice_for if options.choose else truth
        names = (f"{cell} ({T},{B},{H})" for cell, T, B, H in SHAPES)
        print(json.dumps(dict(zip(names, map(do, SHAPES), strict=True))))
        return
    rows = run(options.out.resolve(), options.caches, options.processes)
    for process in range(options.processes):
        print(summary(rows, process))
    print(f"rows: {options.out / 'choices.jsonl'}")


if __name__ == "__main__":
    main()
