"""Functions of `elman.functional` beside those that models of transformers run on a CPU.

    pip install transformers
    python -m benchmarks.scripts.transformers_rules [--seconds 2] [--only NAME] [--out FILE.jsonl]

A prompt, a token behind it, and a training step of one layer of usual size in float32. Results are
compared before times: outputs, last states, and gradients of every argument. Both run
interleaved; a row has the medians (s) and the largest relative error. Without transformers the
script says so. An idle machine is wanted; five minutes.
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
MODELS = {  # of transformers: the module, and its functions of a sequence and of a single step
    "gated_delta_rule": (
        *("qwen3_5", "torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"),
    ),
    "kda": ("kimi_linear", "chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"),
    "mamba2_scan": ("mamba2", "mamba2_chunk_scan"),
    "selective_scan": ("mamba", "mamba_selective_scan"),
}
SIZES = {  # heads, their rows and columns; of Mamba groups of channels
    "gated_delta_rule": (16, 128, 128),
    "kda": (16, 128, 128),
    "mamba2_scan": (24, 64, 128),
    "selective_scan": (24, 64, 16),
}


class Case(NamedTuple):
    """What is timed: a function of B sequences of T steps, with its gradients if it is training."""

    function: str
    B: int
    T: int
    training: bool = False


CASES = {
    "gated delta rule, prompt of 512": Case("gated_delta_rule", 1, 512),
    "gated delta rule, prompt of 2048": Case("gated_delta_rule", 1, 2048),
    "gated delta rule, a token": Case("gated_delta_rule", 1, 1),
    "gated delta rule, training, 4 of 512": Case("gated_delta_rule", 4, 512, True),
    "KDA, prompt of 512": Case("kda", 1, 512),
    "KDA, training, 4 of 512": Case("kda", 4, 512, True),
    "Mamba-2, prompt of 2048": Case("mamba2_scan", 1, 2048),
    "Mamba-2, training, 4 of 512": Case("mamba2_scan", 4, 512, True),
    "Mamba, prompt of 2048": Case("selective_scan", 1, 2048),
    "Mamba, training, 1 of 256": Case("selective_scan", 1, 256, True),
}


class Call(NamedTuple):
    """Arguments of a function; its leaves get gradients."""

    given: tuple[Tensor, ...]
    options: dict[str, Any]
    leaves: list[Tensor]


def peer(case: Case) -> Function:
    """The function of torch's operations, whatever else is installed."""
    folder, *names = MODELS[case.function]
    module = import_module(f"transformers.models.{folder}.modeling_{folder}")
    return inspect.unwrap(getattr(module, names[case.T == 1]))


def draw(case: Case) -> Call:
    """Arguments; behind a prompt there is a state."""
    source = torch.Generator().manual_seed(0)
    heads, rows, columns = SIZES[case.function]
    lead, channels = (case.B, case.T, heads), heads * rows

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source)

    if case.function == "selective_scan":
        u, delta = normal(case.B, channels, case.T), normal(case.B, channels, case.T)
        A = -0.5 - normal(channels, columns).abs()
        B, C = (normal(case.B, columns, case.T) for _ in range(2))
        leaves = [u, delta, A, B, C, normal(channels)]
        options = {"D": leaves[-1], "delta_softplus": True, "return_last_state": True}
    elif case.function == "mamba2_scan":
        A = -0.5 - normal(heads).abs()
        B, C = (normal(case.B, case.T, 1, columns) for _ in range(2))
        leaves = [normal(*lead, rows), normal(*lead), A, B, C, normal(heads)]
        options = {"D": leaves[-1], "dt_softplus": True, "return_final_states": True}
        options["chunk_size"] = 256
    else:
        q, k, v = (normal(*lead, columns) for _ in range(3))
        g = -normal(*lead, *([rows] if case.function == "kda" else [])).abs() / 2
        leaves = [q, k, v, g, normal(*lead).sigmoid()]
        state = None if case.T > 1 else normal(case.B, heads, rows, columns)
        options = {"g": g, "beta": leaves[-1], "initial_state": state}
        options |= {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    for leaf in leaves:
        leaf.requires_grad_(case.training)
    named = {id(value) for value in options.values()}
    return Call(tuple(leaf for leaf in leaves if id(leaf) not in named), options, leaves)


def results(function: Function, call: Call, training: bool) -> list[Tensor]:
    """Results of one call, and gradients of its leaves in training."""
    with torch.set_grad_enabled(training):
        out, last = function(*call.given, **call.options)
    if not training:
        return [out, last]
    gradients = torch.autograd.grad(out.square().sum() + last.sum(), call.leaves)
    return [out.detach(), last.detach(), *gradients]


def compare(case: Case, seconds: float) -> dict[str, Any]:
    """A row of one case. Raises AssertionError: the results differ."""
    call = draw(case)
    ways = {"torch": peer(case), "elman": getattr(functional, case.function)}
    runs = {name: lambda way=way: results(way, call, case.training) for name, way in ways.items()}
    want, got = (run() for run in runs.values())
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True))
    assert error < TOLERANCE, f"{case} differs by {error:.1e}"
    samples = time_side_by_side(runs, seconds, rounds=3)
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
        row = {"case": name, **case._asdict(), "sizes": SIZES[case.function], "version": version}
        row |= {**compare(case, options.seconds), **code(), "machine": facts()}
        if options.out:
            append_row(options.out, row)
        print(json.dumps({key: row[key] for key in ("case", "error", "seconds")}), flush=True)


if __name__ == "__main__":
    main()
