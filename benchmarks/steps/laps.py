"""Time training steps of the ordinary loop and of elman, in turns."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor

from benchmarks.steps.agreement import Runner, elmans, loops, reals
from benchmarks.steps.case import Built, Case, Sizes, build

LEAST, MOST, SECONDS = 5, 25, 4.0  # laps, and when to stop between


def parse(case: Case, text: str) -> tuple[int, int, Sizes]:
    """T, B and sizes of "own" or of "TxBxH", where I = H."""
    if text == "own":
        T, B, I, H = case.own
        return T, B, Sizes(H if case.tied else I, H)
    T, B, H = map(int, text.split("x"))
    return T, B, Sizes(H, H)


def training_step(built: Built, run: Runner, weights: list[Tensor]) -> None:
    """Forward and backward of sum(output · weight)."""
    for parameter in built.module.parameters():
        parameter.grad = None
    outputs, _ = run(built.x, built.state)
    found = reals(outputs)
    if not weights:
        weights.extend(torch.randn_like(output) for output in found)
    torch.stack([(y * w).sum() for y, w in zip(found, weights)]).sum().backward()


def prepare(case: Case, size: str, training: bool) -> Built:
    """A case whose inputs ask for gradients, as a layer's do, and whose states do not."""
    T, B, sizes = parse(case, size)
    built = build(case, T, B, sizes, training=training)
    for leaf in (leaf for leaf in reals(built.state) if leaf.is_leaf):
        leaf.requires_grad_(False)
    return built


def race(case: Case, size: str, training: bool, engine: str, through: str) -> dict[str, Any]:
    """Time both at a size.

    Returns:
        quartiles of milliseconds of each and of their ratio, lap by lap; the seconds of elman's
        first training step; the number of laps.
    """
    plain, fast = (prepare(case, size, training) for _ in range(2))
    rivals = [(plain, loops(plain), []), (fast, elmans(fast, engine, through), [])]
    begin = time.perf_counter()
    training_step(*rivals[1])
    first = time.perf_counter() - begin
    for rival in rivals:
        training_step(*rival)
    laps: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while len(laps) < LEAST or (len(laps) < MOST and time.perf_counter() - begin < SECONDS):
        order = [0, 1] if len(laps) % 2 else [1, 0]
        took = [0.0, 0.0]
        for which in order:
            since = time.perf_counter()
            training_step(*rivals[which])
            took[which] = time.perf_counter() - since
        laps.append((took[0], took[1]))
    T, B, sizes = parse(case, size)
    return {
        "T": T,
        "B": B,
        "I": sizes.I,
        "H": sizes.H,
        "loop_ms": quartiles([1000 * one for one, _ in laps]),
        "elman_ms": quartiles([1000 * other for _, other in laps]),
        "speedup": quartiles([one / other for one, other in laps]),
        "first_s": round(first, 3),
        "laps": len(laps),
    }


def quartiles(samples: list[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return [float(f"{q:.4g}") for q in statistics.quantiles(samples, n=4, method="inclusive")]
