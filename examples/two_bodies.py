"""A Hamiltonian network learns how two bodies attract each other, from their paths.

    python examples/two_bodies.py --picture two_bodies.png
    python examples/two_bodies.py --way deer

The experiment of Lim, Zhu, Selfridge & Kasim (2024, arXiv:2309.12252v3, section 4.2): the state of
two bodies of mass 1 in a plane are their places and momenta, 8 numbers; a network with two hidden
layers is their energy E, and dy/dt = (dE/dp, -dE/dq) (Greydanus et al. 2019, arXiv:1906.01563). A
step of the recurrence is one Runge-Kutta step, written in torch's operations: elman.scan runs it
fused, elman.deer all steps at once by Newton's iteration, and a loop one after another; all with
exact gradients.

Training reads pieces of paths; at the end whole paths that were not trained on are followed from
their start alone. Printed are the distances from the true places, in comparison with bodies that
go on as they began, and how far the true energy drifts; the picture has the first four paths.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import elman

STEP = 0.05  # time units
PIECE = 20  # steps of a path that is trained on
UNITS = 64
Step = Callable[[Tensor], Tensor]


def attraction(y: Tensor) -> Tensor:
    """dy/dt of two bodies [N, 8], places and momenta; masses and constant of gravity are 1."""
    q, p = y[..., :4], y[..., 4:]
    apart = q[..., 2:] - q[..., :2]
    force = apart / apart.square().sum(-1, keepdim=True) ** 1.5
    return torch.cat((p, force, -force), -1)


def energy(y: Tensor) -> Tensor:
    """The true energy of states [..., 8]."""
    distance = (y[..., 2:4] - y[..., :2]).square().sum(-1).sqrt()
    return y[..., 4:].square().sum(-1) / 2 - 1 / distance


def advance(field: Step, y: Tensor, h: float = STEP) -> Tensor:
    """States after a Runge-Kutta step of order 4."""
    k1 = field(y)
    k2 = field(y + h / 2 * k1)
    k3 = field(y + h / 2 * k2)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + field(y + h * k3))


def drawn(count: int, steps: int) -> Tensor:
    """True paths [steps + 1, count, 8] around the common centre, nearly round."""
    angle, radius = 2 * torch.pi * torch.rand(count), 0.5 + torch.rand(count)
    place = radius * torch.stack((angle.cos(), angle.sin()))
    speed = torch.stack((-place[1], place[0])) / radius**1.5 / 2
    speed = speed * (1 + 0.05 * torch.randn(count))
    y = torch.cat((place, -place, speed, -speed)).T
    path = [y]
    for _ in range(steps):
        for _ in range(10):  # true to float32's digits
            y = advance(attraction, y, STEP / 10)
        path.append(y)
    return torch.stack(path)


class Energy(nn.Module):
    """E(y) = w · tanh(W2 tanh(W1 y + b1) + b2), and the flow that keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, UNITS), nn.Linear(UNITS, UNITS)
        self.last = nn.Parameter(torch.randn(UNITS) / UNITS**0.5)

    def forward(self, y: Tensor) -> Tensor:
        """dy/dt of states [N, 8]."""
        low = torch.tanh(self.first(y))
        high = torch.tanh(self.second(low))
        slope = (self.last * (1 - high * high)) @ self.second.weight
        slope = ((1 - low * low) * slope) @ self.first.weight
        return torch.cat((slope[..., 4:], -slope[..., :4]), -1)


def fused(step: Step, y: Tensor, steps: int) -> Tensor:
    """States [steps, N, 8] behind y by elman.scan."""

    def body(y: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        y = step(y)
        return y, y.clone()

    return elman.scan(body, y, torch.zeros(steps, 1))[1]


def at_once(step: Step, y: Tensor, steps: int) -> Tensor:
    """The same by Newton's iteration on all steps."""
    return elman.deer(lambda y, _: step(y), y, torch.zeros(steps, len(y), 1))


def in_turn(step: Step, y: Tensor, steps: int) -> Tensor:
    """The same by a loop."""
    path = []
    for _ in range(steps):
        y = step(y)
        path.append(y)
    return torch.stack(path)


WAYS = {"scan": fused, "deer": at_once, "loop": in_turn}


def draw(file: str, true: Tensor, found: Tensor) -> None:
    """Paths [T, 4, 8]: true ones in grey, those of the network in colour."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.8), layout="constrained")
    for n, axes in enumerate(figure.subplots(1, 4)):
        for body, colour in ((0, "tab:blue"), (2, "tab:orange")):
            axes.plot(*true[:, n, body : body + 2].T, color="0.75", linewidth=4)
            axes.plot(*found[:, n, body : body + 2].T, color=colour, linewidth=1)
            axes.plot(*found[-1, n, body : body + 2], "o", color=colour)
        axes.set_aspect("equal")
        axes.set_xticks([])
        axes.set_yticks([])
    figure.savefig(file, dpi=100)


def main() -> None:
    """Train on pieces, follow whole paths."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--way", choices=tuple(WAYS), default="scan")
    parser.add_argument("--paths", type=int, default=500, help="that are trained on")
    parser.add_argument("--samples", type=int, default=200, help="of a path")
    parser.add_argument("--batch", type=int, default=100, help="pieces")
    parser.add_argument("--steps", type=int, default=5000, help="of training")
    parser.add_argument("--picture", help="a file for the picture")
    options = parser.parse_args()
    torch.manual_seed(0)
    train, test = drawn(options.paths, options.samples), drawn(100, options.samples)
    field, way = Energy(), WAYS[options.way]
    optimizer = torch.optim.Adam(field.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    began = time.perf_counter()
    for n in range(1, options.steps + 1):
        starts = torch.randint(options.samples - PIECE + 1, (options.batch,))
        chosen = torch.randint(options.paths, (options.batch,))
        pieces = train[starts + torch.arange(PIECE + 1)[:, None], chosen]
        optimizer.zero_grad()
        found = way(lambda y: advance(field, y), pieces[0], PIECE)
        loss = (found - pieces[1:]).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        if n % max(1, options.steps // 5) == 0:
            spent = time.perf_counter() - began
            print(f"step {n:6d}  {spent:6.1f} s  loss {loss:.2e}", flush=True)
    with torch.no_grad():
        found = torch.cat((test[:1], way(lambda y: advance(field, y), test[0], options.samples)))
    straight = (
        test[0, :, :4] + STEP * torch.arange(options.samples + 1)[:, None, None] * (test[0, :, 4:])
    )
    for name, places in (("of the network", found[..., :4]), ("straight on", straight)):
        off = (places - test[..., :4]).unflatten(-1, (2, 2)).norm(dim=-1).mean((1, 2))
        marks = [round(options.samples * part / 4) for part in (1, 2, 3, 4)]
        values = "  ".join(f"{off[mark]:.4f} at {STEP * mark:g}" for mark in marks)
        print(f"distance {name:15} {values}")
    drift = (energy(found) - energy(found[:1])).abs().mean(1)
    print(f"energy {energy(found[0]).mean():.3f}, drift {drift.max():.1e}")
    if options.picture:
        draw(options.picture, test[:, :4], found[:, :4])


if __name__ == "__main__":
    main()
