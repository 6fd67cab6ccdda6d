"""Single steps of a cell with a matrix per sample beside merged ones, and which are chosen.

    python -m benchmarks.scripts.merged_steps [--cell gated_delta_net] [--sizes 32,64,128,256]
        [--steps 256,2048,16384] [--batch 8] [--seconds 2] [--out FILE.jsonl]

Matrices of K by K, B samples of all heads. A row of each size: seconds of a training step under
each schedule (medians of alternating rounds in one process, on this process's threads), and the
schedule that was chosen by the benchmark of milliseconds before them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import elman
from benchmarks.machine import code, facts
from benchmarks.peers.matrix_forms import FORMS
from benchmarks.rows import append_row
from elman import compiler
from elman.engines.call import Call, Cotangents
from elman.plan.spec import Spec
from elman.tuning.choose import choose
from elman.tuning.kernels import candidates
from elman.tuning.timing import quartiles, time_interleaved
from elman.tuning.trial import Trial
from elman.tuning.verification import compile_verified

ENGINE = "c"
ROUNDS = 7


def measure(name: str, size: int, steps: int, batch: int, seconds: float) -> dict[str, Any]:
    """The row of one size."""
    cell, forms = getattr(elman.cells, name), FORMS[name]
    wants = frozenset(entry.name for entry in cell.inputs)
    sizes = tuple(sorted(cell.bind(size, size).items()))
    job = compiler.job(cell, Spec(sizes, "float32", "cpu", wants, training=True))
    source = torch.Generator().manual_seed(0)
    leaves = forms.draw(steps, batch, size, size, source)
    states = tuple(torch.zeros(batch, size * size) for _ in job.graph.states)
    call = Call(tuple(value.float() for value in leaves.values()), states, ())
    dy = torch.randn(steps, batch, size, generator=source)
    trial = Trial(job, call, Cotangents(dy, tuple(None for _ in states)))
    chosen = choose(job, steps, batch, ENGINE).schedule
    able, _ = candidates(job, (ENGINE,), steps, batch)
    runs = {
        schedule: partial(trial.run, compile_verified(job, engine, schedule))
        for engine, schedule in able
    }
    times = {
        schedule: quartiles(samples).median
        for schedule, samples in time_interleaved(runs, seconds, ROUNDS).items()
    }
    return {"chosen": chosen, "seconds": times, "off": times[chosen] / min(times.values()) - 1}


def numbers(text: str) -> list[int]:
    """Sizes of an option."""
    return [int(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all sizes, print a row of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cell", default="gated_delta_net", help="without weights, one state")
    parser.add_argument("--sizes", type=numbers, default=[32, 64, 128, 256], help="K = V")
    parser.add_argument("--steps", type=numbers, default=[256, 2048, 16384], help="T")
    parser.add_argument("--batch", type=int, default=8, help="samples of all heads")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each row")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    options = parser.parse_args(arguments)
    for size in options.sizes:
        for steps in options.steps:
            figures = measure(options.cell, size, steps, options.batch, options.seconds)
            case = {"case": f"{options.cell} {size}, {steps}", "cell": options.cell, "size": size}
            row = {**case, "steps": steps, "batch": options.batch, **figures, **code(), **facts()}
            if options.out:
                append_row(options.out, row)
            print(json.dumps({**case, "steps": steps, **figures}), flush=True)


if __name__ == "__main__":
    main()
