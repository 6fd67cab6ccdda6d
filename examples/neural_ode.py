"""A neural ODE learns a pendulum from its path: all time steps at once, or one after another.

    python examples/neural_ode.py              both ways, from the same weights
    python examples/neural_ode.py --way deer   all steps at once alone

The right-hand side of dy/dt = g(y) is a small network. A step of the recurrence is a few
Runge-Kutta steps (inner steps of a fixed size), so a path of T samples is a recurrence of T steps
whose step is any torch function: elman.deer solves all of them by Newton's iteration and gives
exact gradients. The other way is a loop over the same function.

Source of the method: Lim, Zhu, Selfridge & Kasim 2024, arXiv:2309.12252v3.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import elman

INNER = 2  # Runge-Kutta steps from one sample to the next
Field = Callable[[Tensor], Tensor]
Solver = Callable[[Callable[[Tensor, Tensor], Tensor], Tensor, Tensor], Tensor]


def pendulum(y: Tensor) -> Tensor:
    """Angle and speed of a damped pendulum, and how they change."""
    angle, speed = y.unbind(-1)
    return torch.stack((speed, -torch.sin(angle) - 0.05 * speed), -1)


def step_of(field: Field) -> Callable[[Tensor, Tensor], Tensor]:
    """From y [N, 2] to y one sample later; x [N, 1] is the time between samples."""

    def step(y: Tensor, x: Tensor) -> Tensor:
        h = x / INNER
        for _ in range(INNER):
            k1 = field(y)
            k2 = field(y + h / 2 * k1)
            k3 = field(y + h / 2 * k2)
            k4 = field(y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y

    return step


def in_turn(step: Callable[[Tensor, Tensor], Tensor], y: Tensor, x: Tensor) -> Tensor:
    """y [T, B, 2]: one step after another."""
    path = []
    for row in x:
        y = step(y, row)
        path.append(y)
    return torch.stack(path)


WAYS: dict[str, Solver] = {"deer": elman.deer, "in turn": in_turn}


def train(way: str, start: Tensor, x: Tensor, truth: Tensor, steps: int) -> list[float]:
    """Fit a network to paths; the losses."""
    torch.manual_seed(0)
    field = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(field.parameters(), 1e-2)
    losses, began = [], time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (WAYS[way](step_of(field), start, x) - truth).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - began
    print(
        f"{way:8} loss {losses[0]:.4f} -> {losses[-1]:.4f}, {1e3 * seconds / steps:.0f} ms a step"
    )
    return losses


def main() -> None:
    """Draw paths, fit them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--way", choices=tuple(WAYS))
    parser.add_argument("--samples", type=int, default=500, help="of a path")
    parser.add_argument("--paths", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20, help="of training")
    parser.add_argument("--seconds", type=float, default=0.02, help="between samples")
    options = parser.parse_args()
    torch.manual_seed(1)
    start = 1.5 * torch.randn(options.paths, 2)
    x = torch.full((options.samples, options.paths, 1), options.seconds)
    with torch.no_grad():
        truth = in_turn(step_of(pendulum), start, x)
    losses = [
        train(way, start, x, truth, options.steps)
        for way in ([options.way] if options.way else WAYS)
    ]
    if len(losses) == len(WAYS):
        apart = max(abs(a - b) / b for a, b in zip(*losses, strict=True))
        print(f"the losses are the same within {apart:.1e}")


if __name__ == "__main__":
    main()
