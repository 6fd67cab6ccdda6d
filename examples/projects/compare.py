"""What the examples here share: a model before and after, in agreement and side by side."""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

ROUNDS = 5
Moved = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


def sizes(about: str | None, steps: int, batch: int, units: int) -> tuple[int, int, int]:
    """T, B and H: the project's own, or those of the command line."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--batch", type=int, default=batch)
    parser.add_argument("--units", type=int, default=units)
    options = parser.parse_args()
    return options.steps, options.batch, options.units


def compare(
    before: nn.Module,
    after: nn.Module,
    moved: Moved,
    x: Tensor,
    *arguments: Any,
    random: bool = False,
) -> None:
    """Give one model the other's weights, and print how they agree and how long they take.

    Args:
        before, after: called with x and the arguments; the first result is the output.
        moved: brings weights of the first one, or their gradients, under the names of the second,
            whose own stay where there is none.
        x [T, B, I]: input.
        arguments: further arguments of both models.
        random: whether they draw random numbers in training: they are compared in eval().
    """
    after.load_state_dict({**after.state_dict(), **moved(before.state_dict())})
    doubles = [copy.deepcopy(model).double().train(not random) for model in (before, after)]
    exact = [v.double() if isinstance(v, Tensor) else v for v in (x, *arguments)]
    want, got = (gradients(model, *exact) for model in doubles)
    want = {"output": want.pop("output"), "x": want.pop("x"), **moved(want)}
    off = max(float((got[k] - v).norm() / v.norm().clamp_min(1e-30)) for k, v in want.items())
    print(f"the output and {len(want) - 1} gradients agree within {off:.0e} in float64")
    assert off < 1e-9, "these are two models"
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS + 1):
        for model, seconds in zip((before, after), times, strict=True):
            start = time.perf_counter()
            gradients(model, x, *arguments)
            seconds.append(time.perf_counter() - start)
    loop, fused = (statistics.median(seconds[1:]) for seconds in times)
    timing = f"{1e3 * loop:.1f} ms in a loop, {1e3 * fused:.1f} ms on elman, {loop / fused:.1f}x"
    print(f"forward and backward: {timing}")


def gradients(model: nn.Module, x: Tensor, *arguments: Any) -> dict[str, Tensor]:
    """The output, and gradients of x and all parameters for one cotangent."""
    x = x.detach().requires_grad_()
    output = model(x, *arguments)[0]
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    names, parameters = zip(*trained, strict=True)
    dy = torch.linspace(-1.0, 1.0, output.numel(), dtype=x.dtype).view_as(output)
    dx, *grads = torch.autograd.grad(output, (x, *parameters), dy)
    return {"output": output.detach(), "x": dx, **dict(zip(names, grads, strict=True))}
