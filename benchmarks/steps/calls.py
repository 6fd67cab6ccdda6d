"""What a call costs, and a first one: loops of steps beside a layer of the same formula.

    python -m benchmarks.steps.calls

prints medians of alternating rounds: microseconds of a call (T = 1, B = 1, no gradients), and
seconds of tracing, reading and judging a step, kernels aside.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

import elman

I, H = 32, 64
ROUNDS, CALLS = 15, 300


def calls_of(first: nn.GRUCell) -> dict[str, Callable[[], Any]]:
    """The calls that are timed."""
    x, h = torch.randn(1, 1, I), torch.zeros(1, H)
    net = elman.Recurrent(elman.cells.gru, I, H, engine="c")
    loop = elman.Loop(first, engine="c")

    def fresh() -> Any:
        def step(h: Tensor, x: Tensor) -> Any:
            h = first(x, h)
            return h, h

        return elman.scan(step, h, x, engine="c")

    state = h.unsqueeze(0)
    return {"Recurrent": lambda: net(x, state), "Loop": lambda: loop(x, h), "scan": fresh}


def microseconds(call: Callable[[], Any]) -> float:
    """The mean time of some calls."""
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) / CALLS * 1e6


def first_calls() -> dict[str, float]:
    """Seconds of the first call of a step that nothing knows, on engine ``reference``."""
    found: dict[str, float] = {}
    steps: dict[str, Any] = {"GRUCell": nn.GRUCell(I, H)}
    try:
        wiring = import_module("ncps.wirings").FullyConnected(H)
        steps["LTCCell, 6 unfoldings"] = import_module("ncps.torch").LTCCell(wiring, I)
    except ImportError:
        print("ncps is not installed: no LTC")
    x, h = torch.randn(3, 4, I), torch.zeros(4, H)
    elman.Loop(nn.RNNCell(I, H), engine="reference")(x, h)  # imports
    for name, cell in steps.items():
        begin = time.perf_counter()
        elman.Loop(cell, engine="reference")(x, h)
        found[name] = time.perf_counter() - begin
    return found


def main() -> None:
    """Measure and print."""
    torch.manual_seed(0)
    with torch.no_grad():
        calls = calls_of(nn.GRUCell(I, H))
        for call in calls.values():
            microseconds(call)
        rounds = [{name: microseconds(call) for name, call in calls.items()} for _ in range(ROUNDS)]
    for name in calls:
        over = statistics.median([row[name] - row["Recurrent"] for row in rounds])
        print(
            f"{name:12}{statistics.median([row[name] for row in rounds]):8.1f} us, {over:6.1f} more"
        )
    for name, seconds in first_calls().items():
        print(f"first call of {name}: {seconds:.2f} s with three steps on engine reference")


if __name__ == "__main__":
    main()
