"""Functions of `elman.functional` beside those that models of transformers run on a CPU.

    pip install transformers
    python -m benchmarks.scripts.transformers_rules [--seconds 2] [--only NAME] [--out FILE.jsonl]

16 heads of 128 by 128 in float32: a prompt, a token behind it, and a training step. Results are
compared before times: outputs, last states, and gradients of every argument. Both run
interleaved; a row has the medians (s) and the largest relative error. Without transformers the
script says so. An idle machine is wanted; two minutes.
"""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.machine import code, facts
from benchmarks.rows import append_row
from benchmarks.timing import time_side_by_side
from elman import functional

Function = Callable[..., tuple[Tensor, Tensor]]
TOLERANCE = 1e-4  # of relative errors in float32
HEADS, SIZE = 16, 128
MODELS = {  # of transformers: of the module, functions of a sequence and of single steps
    "gated_delta_rule": (
        *("qwen3_5", "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"),
    ),
    "kda": ("kimi_linear", "chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"),
}


class Case(NamedTuple):
    """What is timed: a function of B sequences of T steps, with its gradients if it is training."""

    function: str
    B: int
    T: int
    training: bool = False


CASES = {
    "prompt of 512": Case("gated_delta_rule", 1, 512),
    "prompt of 2048": Case("gated_delta_rule", 1, 2048),
    "token": Case("gated_delta_rule", 1, 1),
    "training, 1 of 512": Case("gated_delta_rule", 1, 512, True),
    "training, 4 of 512": Case("gated_delta_rule", 4, 512, True),
    "KDA, prompt of 512": Case("kda", 1, 512),
    "KDA, training, 4 of 512": Case("kda", 4, 512, True),
}


def peer(case: Case) -> Function:
    """The function of torch's operations, whatever else is installed."""
    folder, *names = MODELS[case.function]
    module = import_module(f"transformers.models.{folder}.modeling_{folder}")
    return inspect.unwrap(getattr(module, names[case.T == 1]))


def draw(case: Case) -> dict[str, Any]:
    """Arguments; behind a prompt there is a state."""
    source = torch.Generator().manual_seed(0)
    lead = (case.B, case.T, HEADS)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source).requires_grad_(case.training)

    every: dict[str, Any] = {name: normal(*lead, SIZE) for name in ("query", "key", "value")}
    decay = normal(*lead, *([SIZE] if case.function == "kda" else []))
    every |= {"g": -decay.detach().abs() / 2, "beta": normal(*lead).detach().sigmoid()}
    state = None if case.T > 1 else normal(case.B, HEADS, SIZE, SIZE)
    return every | {"initial_state": state}


def calls(function: Function, every: dict[str, Any], training: bool) -> list[Tensor]:
    """Results of one call, and gradients of its arguments in training."""
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    given = list(every.values())[:3]
    rest = {name: every[name] for name in ("g", "beta", "initial_state")}
    with torch.set_grad_enabled(training):
        out, last = function(*given, **rest, **options)
    if not training:
        return [out, last]
    gradients = torch.autograd.grad(out.square().sum() + last.sum(), given)
    return [out.detach(), last.detach(), *gradients]


def compare(case: Case, seconds: float) -> dict[str, Any]:
    """A row of one case. Raises AssertionError: the results differ."""
    every = draw(case)
    ways = {"torch": peer(case), "elman": getattr(functional, case.function)}
    runs = {name: lambda way=way: calls(way, every, case.training) for name, way in ways.items()}
    want, got = (run() for run in runs.values())
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True))
    assert error < TOLERANCE, f"{case} differs by {error:.1e}"
    samples = time_side_by_side(runs, seconds, rounds=5)
    times = {name: median(each.steady) for name, each in samples.items()}
    return {"error": error, "seconds": times}


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare and time all cases, and print a line of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of the rounds of a case")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--out", type=Path, help="rows, a line each")
    options = parser.parse_args(arguments)
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        print("transformers is not installed: pip install transformers")
        return
    for name, case in CASES.items():
        if not name.startswith(options.only):
            continue
        row = {"case": name, **case._asdict(), "heads": HEADS, "size": SIZE, "version": version}
        row |= {**compare(case, options.seconds), **code(), "machine": facts()}
        if options.out:
            append_row(options.out, row)
        print(json.dumps({key: row[key] for key in ("case", "error", "seconds")}), flush=True)


if __name__ == "__main__":
    main()
