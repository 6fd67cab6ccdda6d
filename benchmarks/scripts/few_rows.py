"""Linear layers of few rows, their weights in int8, bfloat16 and float32, compared with torch's.

    python -m benchmarks.scripts.few_rows [--threads 1] [--seconds 0.3] [--out FILE.jsonl]

Without gradients, in float32. Layers take turns, so that weights come from memory and not from a
cache, as in a model. A row has medians (s) of torch's layer and of elman's, in turns, by the number
of rows. An idle machine is wanted; half a minute.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional as F  # noqa: N812  # torch's own habit

from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from elman.engines.c.kernels.few_rows import linear
from elman.functional.linear_layers import TYPES, copy_of

SIZES = ((4096, 1024), (1024, 2048))  # outputs, inputs
ROWS = (1, 2, 4, 8, 16)
MEMORY = 64 << 20  # bytes of layers that take turns


def race(outputs: int, inputs: int, rows: int, seconds: float) -> dict[str, float]:
    """Medians (s) of a layer's call, by the type of its weights."""
    torch.manual_seed(0)
    count = max(2, MEMORY // (4 * outputs * inputs))
    layers = [torch.randn(outputs, inputs) / inputs**0.5 for _ in range(count)]
    copies = {name: [copy_of(w, dtype) for w in layers] for name, dtype in TYPES.items()}
    x = torch.randn(rows, inputs)
    samples: dict[str, list[float]] = {name: [] for name in ("torch", *copies)}
    turn, end = 0, time.perf_counter() + seconds
    while turn < 3 or time.perf_counter() < end:
        for name, found in samples.items():
            start = time.perf_counter()
            if name == "torch":
                F.linear(x, layers[turn % count])
            else:
                linear(x, *copies[name][turn % count], None)
            found.append(time.perf_counter() - start)
        turn += 1
    return {name: median(found[1:]) for name, found in samples.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Time all sizes, and print a line of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="rows, a line each")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each timing")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        for outputs, inputs in SIZES:
            times = {rows: race(outputs, inputs, rows, options.seconds) for rows in ROWS}
            case = f"{outputs} x {inputs}, {options.threads} threads"
            row = {"case": case, "seconds": times}
            if options.out:
                append_row(options.out, row | code() | {"machine": facts()})
            faster = {
                rows: {name: round(of["torch"] / s, 2) for name, s in of.items() if name != "torch"}
                for rows, of in times.items()
            }
            print(json.dumps({"case": case, "times as fast as torch": faster}), flush=True)
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    main()
