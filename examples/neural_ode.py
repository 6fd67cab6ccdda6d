"""A neural ODE, or a Hamiltonian net, learns a pendulum from its path, in three ways.

    python examples/neural_ode.py                         all ways, from the same weights
    python examples/neural_ode.py --field hamiltonian --way c
    python examples/neural_ode.py --field adaptive        step sizes by an estimate of the error

The right-hand side of dy/dt = g(y) is a small network (Chen et al. 2018, arXiv:1806.07366), or
dy/dt = J grad E(y) of a network E, the energy, which such a flow keeps (Greydanus et al. 2019,
arXiv:1906.01563). A step of the recurrence is a few Runge-Kutta steps of a fixed size, so a path of
T samples is a recurrence of T steps. As an elman cell, it is compiled: engine c runs the steps one
after another and derives the backward. As a torch function, elman.deer solves all steps by Newton's
iteration (Lim, Zhu, Selfridge & Kasim 2024, arXiv:2309.12252v3), and a loop runs it step by step.
All have exact gradients. Samples may be apart by different times: they are the input.

With --field adaptive the size of a step is a state of the cell: an embedded pair of orders 3 and 2
(Bogacki & Shampine 1989) estimates the error of each attempt, which is taken or made again with a
smaller step, each sample of the batch for itself.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import elman
from elman import ops

INNER = 2  # Runge-Kutta steps from one sample to the next
UNITS = 32
H, ATTEMPTS, TOLERANCE = 0.1, 8, 1e-4  # of adaptive steps: the first, and the error of one
Field = Callable[[Any], Any]
Path = Callable[[Tensor, Tensor], Tensor]  # of y [B, 2] and times between samples [T, B, 1]


def pendulum(y: Tensor, friction: float) -> Tensor:
    """Angle and speed of a pendulum, and how they change."""
    angle, speed = y.unbind(-1)
    return torch.stack((speed, -torch.sin(angle) - friction * speed), -1)


def advance(field: Field, y: Any, time: Any) -> Any:
    """y after a time, of tensors or of the values of a cell."""
    h = time / INNER
    for _ in range(INNER):
        k1 = field(y)
        k2 = field(y + h / 2 * k1)
        k3 = field(y + h / 2 * k2)
        k4 = field(y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


@elman.cell(input="t", state="y[2]", weights="W[K, 2], b[K], U[2, K], c[2]")
def neural(t, y, W, b, U, c):
    """dy/dt is a network."""
    return advance(lambda y: U @ ops.tanh(W @ y + b) + c, y, t)


@elman.cell(input="t", state="y[2]", weights="W[K, 2], b[K], u[K]", constants="J[2, 2]")
def hamiltonian(t, y, W, b, u, J):
    """dy/dt is the gradient of an energy u tanh(W y + b), turned by a right angle."""

    def field(y: Any) -> Any:
        slope = ops.tanh(W @ y + b)
        return J @ (W.T @ (u * (1 - slope * slope)))

    return advance(field, y, t)


def attempt(field: Field, y: Any, h: Any) -> tuple[Any, Any]:
    """y after a step of the pair, and the difference of its two orders."""
    k1 = field(y)
    k2 = field(y + h / 2 * k1)
    k3 = field(y + 3 * h / 4 * k2)
    new = y + h * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3)
    return new, h * (5 / 72 * k1 - k2 / 12 - k3 / 9 + field(new) / 8)


@elman.cell(
    input="t", state="y[2], h", output="y[2]", weights="W[K, 2], b[K], U[2, K], c[2]", init={"h": H}
)
def adaptive(t, y, h, W, b, U, c):
    """dy/dt is a network; some attempts, then what is left of the time in one step."""

    def field(y: Any) -> Any:
        return U @ ops.tanh(W @ y + b) + c

    for _ in range(ATTEMPTS):
        step = ops.minimum(h, t)
        new, error = attempt(field, y, step)
        share = ops.stop_gradient(ops.amax(abs(error)) / TOLERANCE)
        taken = share <= 1
        size = step * ops.minimum(5.0, ops.maximum(0.2, 0.9 * ops.maximum(share, 1e-6) ** (-1 / 3)))
        cut = (step < h) * taken  # by the end of the time: a larger step may still be right
        h = ops.stop_gradient(ops.where(cut, ops.maximum(h, size), size))
        y, t = ops.where(taken, new, y), ops.where(taken, t - step, t)
    y, _ = attempt(field, y, t)
    return y, y, h


TURN = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
CELLS = {"neural": neural, "hamiltonian": hamiltonian, "adaptive": adaptive}


def model_of(kind: str) -> elman.Recurrent:
    """The cell's module; its weights are those of all ways."""
    torch.manual_seed(0)
    constants: dict[str, Any] = {"J": TURN} if kind == "hamiltonian" else {}
    net = elman.Recurrent(CELLS[kind], 1, 2, engine="c", K=UNITS, **constants)
    for weight in net.parameters():
        nn.init.normal_(weight, std=0.5)
    return net


def field_of(net: elman.Recurrent) -> Field:
    """The right-hand side of a module as a function of tensors y [N, 2]."""
    weights = {name.removesuffix("_l0"): value for name, value in net.named_parameters()}
    W, b = weights["W"], weights["b"]
    if "U" in weights:
        return lambda y: torch.tanh(y @ W.T + b) @ weights["U"].T + weights["c"]
    return lambda y: (weights["u"] * (1 - torch.tanh(y @ W.T + b).square())) @ W @ TURN.T


def in_turn(step: Callable[[Tensor, Tensor], Tensor], y: Tensor, x: Tensor) -> Tensor:
    """y [T, B, 2]: one step after another."""
    path = []
    for row in x:
        y = step(y, row)
        path.append(y)
    return torch.stack(path)


def compiled(net: elman.Recurrent) -> Path:
    """All steps by engine c."""

    def path(y: Tensor, x: Tensor) -> Tensor:
        sizes = (y.new_full((1, len(y)), H),) if len(net.cell.states) > 1 else ()
        return net(x[..., 0], (y[None], *sizes) if sizes else y[None])[0]

    return path


def by_torch(net: elman.Recurrent) -> Path:
    """The cell's steps by torch's operations, one after another."""
    net.engine = "reference"
    return compiled(net)


def stepped(solve: Callable[..., Tensor]) -> Callable[[elman.Recurrent], Path]:
    """All steps of the function by a solver."""
    return lambda net: lambda y, x: solve(lambda y, t: advance(field_of(net), y, t), y, x)


WAYS = {"c": compiled, "deer": stepped(elman.deer), "in turn": stepped(in_turn)}
ADAPTIVE = {"c": compiled, "in turn": by_torch}  # its cell is no function of y alone


def train(kind: str, way: str, start: Tensor, x: Tensor, truth: Tensor, steps: int) -> list[float]:
    """Fit a network to paths; the losses."""
    net = model_of(kind)
    path = (ADAPTIVE if kind == "adaptive" else WAYS)[way](net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    losses, seconds = [], []
    for _ in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = (path(start, x) - truth).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    took = sorted(seconds)[len(seconds) // 2]  # the first one compiles
    print(f"{way:8} loss {losses[0]:.4f} -> {losses[-1]:.4f}, {1e3 * took:.1f} ms a step")
    return losses


def main() -> None:
    """Draw paths at irregular times, fit them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--field", choices=tuple(CELLS), default="neural")
    parser.add_argument("--way", choices=tuple(WAYS))
    parser.add_argument("--samples", type=int, default=500, help="of a path")
    parser.add_argument("--paths", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20, help="of training")
    parser.add_argument("--seconds", type=float, default=0.02, help="between samples, on average")
    options = parser.parse_args()
    torch.set_num_threads(1)  # vectors of two numbers
    torch.manual_seed(1)
    start = 1.5 * torch.randn(options.paths, 2)
    x = options.seconds * (0.5 + torch.rand(options.samples, options.paths, 1))
    friction = 0.0 if options.field == "hamiltonian" else 0.05
    with torch.no_grad():
        truth = in_turn(lambda y, t: advance(lambda y: pendulum(y, friction), y, t), start, x)
    ways = ADAPTIVE if options.field == "adaptive" else WAYS
    if options.way and options.way not in ways:
        parser.error(f"--field {options.field} has no way {options.way}")
    losses = {
        way: train(options.field, way, start, x, truth, options.steps)
        for way in ([options.way] if options.way else ways)
    }
    if len(losses) == len(ways):
        want = losses["in turn"]
        apart = max(
            abs(a - b) / b for other in losses.values() for a, b in zip(other, want, strict=True)
        )
        print(f"the losses are the same within {apart:.1e}")


if __name__ == "__main__":
    main()
