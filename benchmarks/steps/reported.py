"""Steps of public reports about scans, and of common cells: each told once, for torch and JAX.

A step is written in torch's names; ``lib`` is torch, or what has the same names for JAX
(:mod:`benchmarks.steps.in_jax`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

Tree = Any  # of arrays
Step = Callable[[Any, Tree, Tree, Tree], tuple[Tree, Tree]]  # lib, weights, carry, x -> carry, y
Scan = Callable[..., tuple[Tree, Tree]]  # step, init, xs, reverse= -> last carry, outputs
NODES = 20  # of a network of scalars
UNFOLDINGS = 6  # of an ODE solver, in each step


class Sizes(NamedTuple):
    """Steps T, samples B, numbers H of a state and of an input."""

    T: int
    B: int
    H: int


USUAL = Sizes(100, 16, 64)


class Problem(NamedTuple):
    """Values of a report: weights of each scan, first carry, inputs [T, ..]; trees."""

    weights: list[Tree]
    init: Tree
    xs: Tree


@dataclass(frozen=True)
class Report:
    """A step that somebody reported.

    Attributes:
        name: of the row.
        source: where it is reported, or from.
        says: what is reported.
        step: one step.
        problem: values for sizes, in float64.
        sizes: of the measurement.
        both: whether the scans run in both directions; otherwise one after another, each over the
            outputs of that before it.
        trained: whether the report is about gradients.
        dtype: of the measurement.
    """

    name: str
    source: str
    says: str
    step: Step
    problem: Callable[[Sizes], Problem]
    sizes: Sizes = USUAL
    both: bool = False
    trained: bool = True
    dtype: torch.dtype = torch.float32

    @property
    def modes(self) -> tuple[str, ...]:
        """What is measured."""
        return ("train", "forward") if self.trained else ("forward",)

    def program(self, lib: Any, scan: Scan) -> Callable[[list[Tree], Tree, Tree], Any]:
        """All scans of the report: (weights, init, xs) -> outputs, last carries."""

        def run(weights: list[Tree], init: Tree, xs: Tree) -> tuple[Tree, Tree]:
            ys, lasts = xs, []
            outputs = []
            for number, w in enumerate(weights):

                def body(carry: Tree, x: Tree, w: Tree = w) -> tuple[Tree, Tree]:
                    return self.step(lib, w, carry, x)

                backwards = self.both and number == 1
                last, ys = scan(body, init, xs if self.both else ys, reverse=backwards)
                lasts.append(last)
                outputs.append(ys)
            return (outputs if self.both else ys), lasts

        return run


def leaves(tree: Tree) -> list[Any]:
    """The leaves of a tree in JAX's order, whose dicts are sorted."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def normal(*shape: int) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, dtype=torch.float64)


def weight(*shape: int) -> Tensor:
    """A random matrix whose products keep the size of their vector, or a small vector."""
    return normal(*shape) * (shape[0] ** -0.5 if len(shape) > 1 else 0.3)


def zeros(*shape: int) -> Tensor:
    """A first carry."""
    return torch.zeros(*shape, dtype=torch.float64)


# pytorch #195977: what tanh saves for its backward is the carry.


def saved(lib: Any, w: Tree, s: Any, x: Any) -> tuple[Any, Any]:
    """s = tanh(s W + x)."""
    s = lib.tanh(s @ w["W"] + x)
    return s, lib.clone(s)


# pytorch #153679: two networks of phases, one over the outputs of the other.


def phase(lib: Any, w: Tree, s: Any, x: Any) -> tuple[Any, Any]:
    """A phase that follows its input, with a gain for each sign of the difference."""
    d = lib.sin(x - s + w["offset"])
    up, down = lib.exp(w["plus"]), lib.exp(w["minus"])
    s = s + 0.1 * (up * lib.clamp(d, min=0) + down * lib.clamp(d, max=0))
    return s, lib.clone(s)


def phases(s: Sizes) -> Problem:
    """Two networks' values."""
    weights = [{name: weight(s.H) for name in ("plus", "minus", "offset")} for _ in range(2)]
    return Problem(weights, zeros(s.B, s.H), normal(s.T, s.B, s.H))


# pytorch #166516: a cumulative sum, and how often it is below a number.


def counts(lib: Any, w: Tree, s: Any, x: Any) -> tuple[Any, Any]:
    """(total, count), (a, b): no outputs."""
    total, count = s
    total = total + x[0] * x[1]
    return (total, count + (total < w["bound"])), ()


def sums(s: Sizes) -> Problem:
    """Positive factors, and bounds between zero and their sum."""
    a, b = torch.rand(2, s.T, s.B, dtype=torch.float64)
    bound = (a * b).sum(0) * torch.rand(s.B, dtype=torch.float64)
    return Problem([{"bound": bound}], (zeros(s.B), torch.zeros(s.B, dtype=torch.int32)), (a, b))


# pytorch #184528, corrected by #184529: a weight where the first carry asks for no gradient.


def decay(lib: Any, w: Tree, c: Any, x: Any) -> tuple[Any, Any]:
    """c = a c + x."""
    c = w["a"] * c + x
    return c, c * c


# pytorch #191846: the division of its review.


def division(lib: Any, w: Tree, c: Any, x: Any) -> tuple[Any, Any]:
    """c = c / x."""
    c = c / x
    return c, lib.clone(c)


# pytorch #191855 and #189225: an LSTM in both directions; a GRU.


def lstm(lib: Any, w: Tree, s: Any, x: Any) -> tuple[Any, Any]:
    """torch's LSTMCell."""
    h, c = lib.lstm_cell(x, s, w["x"], w["h"], w["x_bias"], w["h_bias"])
    return (h, c), lib.clone(h)


def gru(lib: Any, w: Tree, h: Any, x: Any) -> tuple[Any, Any]:
    """torch's GRUCell."""
    h = lib.gru_cell(x, h, w["x"], w["h"], w["x_bias"], w["h_bias"])
    return h, lib.clone(h)


def gated(gates: int, states: int, scans: int = 1) -> Callable[[Sizes], Problem]:
    """Values of cells whose gates have two matrices and two biases."""

    def problem(s: Sizes) -> Problem:
        n = gates * s.H
        bound = s.H**-0.5
        shapes = {"x": (n, s.H), "h": (n, s.H), "x_bias": (n,), "h_bias": (n,)}
        weights = [
            {
                name: bound * (2 * torch.rand(shape, dtype=torch.float64) - 1)
                for name, shape in shapes.items()
            }
            for _ in range(scans)
        ]
        init = tuple(zeros(s.B, s.H) for _ in range(states))
        return Problem(weights, init if states > 1 else init[0], normal(s.T, s.B, s.H))

    return problem


# Liquid time constants, arXiv 2006.04439, with the fused solver of its equation 3.


def liquid(lib: Any, w: Tree, h: Any, x: Any) -> tuple[Any, Any]:
    """Some steps of the solver for one input."""
    driven = x @ w["x"] + w["bias"]
    for _ in range(UNFOLDINGS):
        f = lib.sigmoid(driven + h @ w["h"])
        h = (h + f * w["A"] / UNFOLDINGS) / (1 + (lib.exp(w["rate"]) + f) / UNFOLDINGS)
    return h, lib.clone(h)


# Closed-form continuous time, arXiv 2106.13898, equation 10.


def closed_form(lib: Any, w: Tree, h: Any, x: Any) -> tuple[Any, Any]:
    """A backbone, two branches, and a gate of time between them; x ends with the time."""
    time = x[..., -1:]
    z = 1.7159 * lib.tanh(0.666 * (lib.cat((x[..., :-1], h), -1) @ w["backbone"] + w["bias"]))
    one, other = lib.tanh(z @ w["one"]), lib.tanh(z @ w["other"])
    gate = lib.sigmoid(time * (z @ w["time"]) + z @ w["offset"])
    h = one * (1 - gate) + gate * other
    return h, lib.clone(h)


def closed_forms(s: Sizes) -> Problem:
    """Its values."""
    square = {name: weight(s.H, s.H) for name in ("one", "other", "time", "offset")}
    weights = {"backbone": weight(2 * s.H, s.H), "bias": weight(s.H), **square}
    times = torch.rand(s.T, s.B, 1, dtype=torch.float64)
    return Problem([weights], zeros(s.B, s.H), torch.cat((normal(s.T, s.B, s.H), times), -1))


def many_scalars(lib: Any, w: Tree, s: Any, x: Any) -> tuple[Any, Any]:
    """jax #40150: a carry of many scalars, a network of beliefs in a ring."""
    new, surprise = {}, 0 * x
    for k in range(NODES):
        mean, precision = s[f"mean_{k}"], s[f"precision_{k}"]
        volatility = lib.exp(w["rate"] * lib.tanh(s[f"mean_{(k + 1) % NODES}"]))
        expected = 1 / (1 / precision + volatility)
        error = x - mean
        surprise = surprise + 0.5 * (expected * error * error - lib.log(expected))
        new[f"mean_{k}"] = mean + error / (expected + 1)
        new[f"precision_{k}"] = expected + 1
    return new, surprise


def beliefs(s: Sizes) -> Problem:
    """Its values."""
    init = {}
    for k in range(NODES):
        init |= {f"mean_{k}": normal(), f"precision_{k}": 1 + normal().abs()}
    return Problem([{"rate": torch.tensor(0.3, dtype=torch.float64)}], init, normal(s.T))


def cholesky(lib: Any, w: Tree, f: Any, x: Any) -> tuple[Any, Any]:
    """jax #36799: one row of the Cholesky factor of a quasiseparable matrix."""
    p, q, a, d = x
    diagonal = lib.sqrt(d - p @ f @ p)
    row = (q - a @ f @ p) / diagonal
    return a @ f @ a.mT + lib.outer(row, row), (diagonal, row)


def factors(s: Sizes) -> Problem:
    """Its values; the carry is [H, H]."""
    xs = 0.2 * normal(s.T, s.H), 0.2 * normal(s.T, s.H), 0.3 * normal(s.T, s.H, s.H)
    return Problem([{}], zeros(s.H, s.H), (*xs, 2 + normal(s.T).abs()))


REPORTS: dict[str, Report] = {
    report.name: report
    for report in (
        Report(
            "tanh carry",
            "pytorch #195977",
            "inductor refuses to train it",
            saved,
            lambda s: Problem([{"W": weight(s.H, s.H)}], zeros(s.B, s.H), normal(s.T, s.B, s.H)),
        ),
        Report(
            "two phase networks",
            "pytorch #153679",
            "under inductor 4 of 6 gradients are wrong",
            phase,
            phases,
        ),
        Report(
            "cumulative count",
            "pytorch #166516",
            "slow: 20 steps of many samples",
            counts,
            sums,
            Sizes(20, 100_000, 1),
            trained=False,
            dtype=torch.float64,
        ),
        Report(
            "decay",
            "pytorch #184528, #184529",
            "wrong gradients of closed-over weights (torch 2.12)",
            decay,
            lambda s: Problem([{"a": 0.9 * torch.rand(s.H, dtype=torch.float64)}],
                              zeros(s.B, s.H), normal(s.T, s.B, s.H)),
        ),
        Report(
            "division",
            "pytorch #191846",
            "a wish: the backward over all steps at once",
            division,
            lambda s: Problem([{}], zeros(s.B, s.H) + 1, (0.05 * normal(s.T, s.B, s.H)).exp()),
            Sizes(1000, 1, 64),
        ),
        Report(
            "LSTMCell, both directions",
            "pytorch #191855",
            "an export has the length of its example in it",
            lstm,
            gated(4, 2, scans=2),
            both=True,
        ),
        Report(
            "GRUCell",
            "pytorch #189225; torch.nn.GRUCell",
            "an export has the other formula",
            gru,
            gated(3, 1),
        ),
        Report("LSTMCell", "torch.nn.LSTMCell", "", lstm, gated(4, 2)),
        Report(
            "LTC",
            "arXiv 2006.04439, equation 3, 6 unfoldings",
            "",
            liquid,
            lambda s: Problem(
                [{"x": weight(s.H, s.H), "h": weight(s.H, s.H), "bias": weight(s.H),
                  "A": weight(s.H), "rate": weight(s.H)}],
                zeros(s.B, s.H), normal(s.T, s.B, s.H),
            ),
        ),
        Report("CfC", "arXiv 2106.13898, equation 10", "", closed_form, closed_forms),
        Report(
            "many scalars",
            "jax #40150",
            "the gradient is 60 times slower than in 0.4.31",
            many_scalars,
            beliefs,
            Sizes(100, 1, 1),
        ),
        Report(
            "Cholesky",
            "jax #36799",
            "ten times slower than in 0.4.31",
            cholesky,
            factors,
            Sizes(2000, 1, 3),
            dtype=torch.float64,
        ),
    )
}  # fmt: skip
