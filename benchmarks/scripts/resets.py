"""What ``reset=`` costs, beside the ways in which people part episodes now.

    python -m benchmarks.scripts.resets [--out FILE] [--seconds 20]

A training step (forward and backward) of a GRU over a batch of rollouts in which 3 % of the steps
begin an episode, all ways (``users/resets.py``) alternating in one process: elman's layer with and
without resets; torch's between all steps at which any sample is reset (``split``), step by step
(``loop``) and over episodes as padded sequences of their own; elman's over such episodes. Values
and gradients are compared before anything is timed.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import elman
from benchmarks.cases import Case
from benchmarks.contestants import TRAIN
from benchmarks.machine import facts
from benchmarks.rows import append_row
from benchmarks.users.resets import SHARE, Fused, Padded, Split, Stepwise, flags
from elman.measuring.timing import quartiles, time_side_by_side

SHAPES = ((100, 32, 256), (128, 256, 512))


def measure(T: int, B: int, H: int, seconds: float) -> dict[str, Any]:
    """One shape: seconds per training step of each way."""
    torch.manual_seed(0)
    case = Case("resets", TRAIN, "gru", T, B, H)
    modules: dict[str, Any] = {
        "elman, reset": Fused(case),
        "split": Split(case),
        "loop": Stepwise(case),
        "episodes": Padded(case),
        "episodes, elman": Padded(case),
    }
    modules["episodes, elman"].layer = elman.GRU(H, H)
    x, dy = torch.randn(T, B, H), torch.randn(T, B, H)
    (done,) = flags(case, torch.Generator().manual_seed(0))

    def step(module: Any, *arguments: Tensor) -> list[Tensor]:
        output = module(x, *arguments)[0]
        return [output.detach(), *torch.autograd.grad(output, list(module.parameters()), dy)]

    want = step(modules["loop"], done)
    for name, module in modules.items():
        module.load_state_dict(modules["loop"].state_dict())
        for value, expected in zip(step(module, done), want, strict=True):
            off = float((value - expected).norm() / expected.norm())
            assert off < 1e-4, f"{name} is off by {off}"
    runs = {name: partial(step, module, done) for name, module in modules.items()}
    runs["elman, none"] = partial(step, modules["elman, reset"].layer)
    samples = time_side_by_side(runs, seconds, 2)
    medians = {name: quartiles(sample.steady).median for name, sample in samples.items()}
    fused = medians["elman, reset"]
    best = min(medians[name] for name in ("split", "loop", "episodes"))
    cost = {"cost": fused / medians["elman, none"] - 1.0, "times the best other": best / fused}
    return {"shape": [T, B, H], "share": SHARE, "seconds": medians, **cost, "machine": facts()}


def main() -> None:
    """Print a row per shape, and append it to a file."""
    parser = argparse.ArgumentParser(description="What reset= costs.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    for shape in SHAPES:
        row = measure(*shape, options.seconds)
        times = {name: f"{value * 1e3:.1f} ms" for name, value in row["seconds"].items()}
        print(row["shape"], times)
        print(f"  cost {row['cost']:.1%}, {row['times the best other']:.2f}x the best other way")
        if options.out is not None:
            append_row(options.out, row)


if __name__ == "__main__":
    main()
