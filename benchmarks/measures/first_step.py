"""Program: the first training step of a cell in a file, in this fresh process, timed.

``python -m benchmarks.measures.first_step FILE T B H THREADS`` prints one JSON object.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import torch

import elman.nn
from elman.tuning.machine import Waiting


def first_step(path: Path, T: int, B: int, H: int) -> dict[str, Any]:
    """Read the cell called ``unseen`` of a file, make a module of it and train one step; (s), what
    ran, and for which share of the time threads waited for a core.

    torch's own first backward, which loads half of sympy whatever is differentiated, is over when
    the clock starts.
    """
    x = torch.randn(T, B, H, requires_grad=True)
    dy = torch.randn(T, B, H)
    x.tanh().backward(dy)
    waiting = Waiting()
    start = time.perf_counter()
    module = elman.nn.Recurrent(runpy.run_path(str(path))["unseen"], H, H)
    output, _ = module(x)
    output.backward(dy)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "facts": elman.nn.choices(module), "waited": waiting.share()}


if __name__ == "__main__":
    file, *sizes, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    T, B, H = map(int, sizes)
    sys.stdout.write(json.dumps(first_step(Path(file), T, B, H)) + "\n")
