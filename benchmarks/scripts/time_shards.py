"""Sequences cut in time over processes of this machine: seconds and memory of a training step.

    python -m benchmarks.scripts.time_shards [--steps 1000000] [--processes 1,2,4] [--out FILE]

A layer that is affine in its state (``lru``) takes one scan, a GRU of two units Newton's iteration.
Each process has one thread, and its own part of one random sequence; gradients are compared with
those of one process that has all steps. Peak memory is that of the largest process.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing.spawn import start_processes

import elman
from benchmarks.machine import code, facts
from benchmarks.rows import append_row

CASES = {"lru, 32 units": ("lru", 32), "gru, 2 units": ("gru", 2)}
INPUTS = 8
REPEATS = 3


def work(rank: int, count: int, name: str, steps: int, folder: str) -> None:
    """Train on the own part; leave seconds, memory (MiB) and the gradients in a file."""
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=count)
    rows = slice(steps * rank // count, steps * (rank + 1) // count)
    cell, hidden = CASES[name]
    torch.manual_seed(0)
    net = elman.Recurrent(getattr(elman.cells, cell), INPUTS, hidden)
    x = torch.randn(steps, 1, INPUTS, generator=torch.Generator().manual_seed(1))[rows].clone()
    seconds = list[float]()
    for _ in range(1 + REPEATS):
        net.zero_grad()
        distributed.barrier()
        began = time.perf_counter()
        with elman.shard_time():
            out, _ = net(x)
        out.square().sum().backward()
        distributed.barrier()
        seconds.append(time.perf_counter() - began)
    grads = [weight.grad for weight in net.parameters() if weight.grad is not None]
    gradients = torch.cat([grad.flatten() for grad in grads])
    distributed.all_reduce(gradients)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    results = [statistics.median(seconds[1:]), peak, gradients.tolist()]
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    distributed.destroy_process_group()


def measure(name: str, counts: Sequence[int], steps: int) -> Iterator[dict[str, Any]]:
    """A row of a case for each number of processes; the first one's gradients are compared with."""
    want: torch.Tensor | None = None
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            arguments = (count, name, steps, folder)
            start_processes(work, arguments, nprocs=count, start_method="spawn")
            files = [Path(folder, f"{rank}.json") for rank in range(count)]
            parts = [json.loads(file.read_text()) for file in files]
        seconds, peaks, gradients = zip(*parts, strict=True)
        got = torch.tensor(gradients[0])
        want = got if want is None else want
        figures = {"seconds": max(seconds), "MiB": max(peaks), "steps": steps}
        off = float((got - want).norm() / want.norm())
        case = {"case": f"{name}, {count} processes", "cell": name, "processes": count}
        yield {**case, **figures, "off": off}


def main(words: Sequence[str] | None = None) -> None:
    """Print a row for each case, and append it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    counts = [*map(int, options.processes.split(","))]
    for row in (row for name in CASES for row in measure(name, counts, options.steps)):
        text = f"{row['case']}: {row['seconds']:.2f} s, {row['MiB']:.0f} MiB, off {row['off']:.0e}"
        print(text, flush=True)
        if options.out:
            append_row(options.out, {**row, **code(), "machine": facts()})


if __name__ == "__main__":
    main()
