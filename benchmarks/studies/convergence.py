"""Convergence of engine deer's solvers.

Iterations until the residual is rounding, at initialisation and after training, over the length of
the sequence; the distance from a sequential run after each iteration; how many values had to be
replaced; and what is returned where nothing converges.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import elman.nn
from benchmarks.cases import Effort, KindCase, Way
from benchmarks.rows import curve
from benchmarks.workloads.custom_cells import find_cell, spec_of
from elman import compiler
from elman.engines.deer import solvers
from elman.engines.deer.equations import Equations, Trajectory, before, largest
from elman.engines.deer.problem import Formula, Problem
from elman.engines.deer.sequential import run_sequentially
from elman.engines.deer.solvers import CHAIN, METHODS, solve
from elman.ir.types import shape_size

# What is done to the recurrent weights before the study: their factor, and steps of training.
WEIGHTS = {
    "untrained": (1.0, 0),
    "trained": (1.0, 150),
    "difficult": (4.0, 0),
    "chaotic": (30.0, 0),
}
LENGTHS = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
_LAST = 200  # steps of the comparison of outputs
_TRAINED_T, _TRAINED_B = 500, 16
_MEMORY = 100  # steps over which the signal to be learned is averaged


@dataclass
class Path:
    """One solver's way, per iteration: residual, distance from a sequential run, values
    replaced."""

    residuals: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    replaced: int = 0


def measure_convergence(case: KindCase, effort: Effort) -> dict[str, Any]:
    """Each solver by itself on one sequence; then the whole chain, as engine deer runs it."""
    del effort
    weights = draw_weights(case)
    problem = problem_of(case, weights, case.T)
    truth = run_sequentially(problem)
    found, lines = {}, {}
    for name in METHODS:
        with watched(problem, truth) as path:
            solution = solve(problem, (name,))
        found[name] = {
            "iterations": solution.iterations if solution.y is not None else None,
            "residuals": path.residuals,
            "errors": path.errors,
            "replaced": path.replaced,
            "refused": solution.tried.get(name),
        }
        lines[name] = [*enumerate(path.errors)]
    chain = solve(problem, CHAIN)
    title = f"{case.name}: distance from a sequential run"
    plots = [
        curve(title, "iteration", "largest error", "y", lines),
        *compared(case, chain.y, truth),
    ]
    return {
        "solvers": found,
        "solved_by": chain.solver or "steps in turn",
        "returned": returned(case, weights),
        "plots": plots,
    }


def measure_lengths(case: KindCase, effort: Effort) -> dict[str, Any]:
    """Iterations of Newton's method over the length of the sequence, before and after training."""
    del effort
    lines: dict[str, Any] = {}
    for kind in ("untrained", "trained"):
        weights = draw_weights(case, kind)
        counts = []
        for T in LENGTHS:
            solution = solve(problem_of(case, weights, T), ("newton",))
            counts.append(solution.iterations if solution.y is not None else None)
        lines[kind] = (list(LENGTHS), counts)
    title = f"{case.name}: iterations until convergence"
    pairs = {kind: [*zip(*line, strict=True)] for kind, line in lines.items()}
    return {"lengths": lines, "plots": [curve(title, "steps T", "iterations", "x", pairs)]}


def draw_weights(case: KindCase, kind: str = "") -> dict[str, Tensor]:
    """A layer's weights as its module draws them, scaled or trained as the case's kind says."""
    scale, steps = WEIGHTS[kind or case.kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = elman.nn.Recurrent(find_cell(case.cell), case.input_size, case.H)
        if steps:
            train(net, steps)
    weights = {name.removesuffix("_l0"): w.detach() for name, w in net.named_parameters()}
    return {name: w * scale if name == "R" else w for name, w in weights.items()}


def train(net: elman.nn.Recurrent, steps: int) -> None:
    """Teach a layer the sign of a long average of its first input."""
    readout = nn.Linear(net.output_size, 1)
    optimizer = torch.optim.Adam([*net.parameters(), *readout.parameters()], 1e-2)
    for _ in range(steps):
        x = torch.randn(_TRAINED_T, _TRAINED_B, net.input_size)
        sums = x[..., 0].cumsum(0)
        ago = torch.cat((sums.new_zeros(_MEMORY, _TRAINED_B), sums[:-_MEMORY]))
        want = torch.sign(sums - ago)
        loss = nn.functional.mse_loss(readout(net(x)[0]).squeeze(-1), want)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def inputs(case: KindCase, T: int) -> Tensor:
    """x [T, B, I] from N(0, 1)."""
    source = torch.Generator().manual_seed(1)
    return torch.randn(T, case.B, case.input_size, generator=source)


def problem_of(case: KindCase, weights: dict[str, Tensor], T: int) -> Problem:
    """The equations of a cell over T steps, from states of zero."""
    job = compiler.job(find_cell(case.cell), spec_of(case, (), training=False))
    sizes = job.spec.sizes
    states = {
        leaf.name: torch.zeros(case.B, *shape_size(leaf.shape, sizes)) for leaf in job.graph.states
    }
    return Problem(Formula(job), {job.graph.inputs[0].name: inputs(case, T)}, states, weights)


@contextmanager
def watched(problem: Problem, truth: Trajectory) -> Iterator[Path]:
    """Write down iterates while a solver runs; of windows one after another, only the first is a
    way."""
    path, steps = Path(), slice(0, 0)
    solve_linearised, solve_window = solvers._solved, solvers._window

    def note(equations: Equations, y: Trajectory, values: Trajectory) -> None:
        if steps.start:
            return
        shown = y if equations is problem else problem.repacked(y)
        errors = [a - b[steps] for a, b in zip(shown, truth, strict=True)]
        off = largest([a - b for a, b in zip(y, values, strict=True)])
        path.errors.append(plain(largest(errors)))
        path.residuals.append(plain(off / max(1.0, largest(values))))

    def solved(equations: Equations, *arguments: Any) -> Trajectory:
        values, y = arguments[2], arguments[4]
        note(equations, y, values)
        raw = solve_linearised(equations, *arguments)
        path.replaced += sum(int((~(part.abs() <= solvers._CLIP)).sum()) for part in raw)
        return raw

    def window(equations: Equations, name: str, guess: Any, start: Trajectory, rows: slice) -> Any:
        nonlocal steps
        steps = rows
        y, iterations, why = solve_window(equations, name, guess, start, rows)
        note(equations, y, equations.values(before(start, y), rows))
        return y, iterations, why

    with mock.patch.multiple(solvers, _solved=solved, _window=window):
        yield path


def plain(value: float) -> float:
    """A number that JSON knows."""
    return value if math.isfinite(value) else 1e30


def compared(case: KindCase, y: Trajectory | None, truth: Trajectory) -> list[dict[str, Any]]:
    """The first unit's last steps by a sequential run, by all steps at once, and their
    difference."""
    if y is None:
        return []
    last = slice(max(0, case.T - _LAST), case.T)
    steps = list(range(last.start, case.T))
    at_once, in_turn = (part[0][last].flatten(1)[:, 0].tolist() for part in (y, truth))
    values = {"in turn": in_turn, "all at once": at_once}
    lines = {name: [*zip(steps, line, strict=True)] for name, line in values.items()}
    off = [(step, abs(a - b)) for step, a, b in zip(steps, at_once, in_turn, strict=True)]
    return [
        curve(f"{case.name}: a unit at the end", "step", "state", "", lines),
        curve(f"{case.name}: difference", "step", "absolute", "", {"difference": off}),
    ]


def returned(case: KindCase, weights: dict[str, Tensor]) -> dict[str, Any]:
    """What a module on engine deer gives: does every step satisfy the recurrence, and did it warn?

    For cells whose output is their one recurrent state.
    """
    net = elman.nn.Recurrent(find_cell(case.cell), case.input_size, case.H, engine="deer")
    net.load_state_dict({f"{name}_l0": w for name, w in weights.items()})
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output, _ = net(inputs(case, case.T))
    problem = problem_of(case, weights, case.T)
    (start,) = problem.start
    y = (output.reshape(-1, *start.shape),)
    (values,) = problem.values(before(problem.start, y), slice(0, problem.steps))
    return {
        **elman.nn.counters(net),
        "warnings": [str(warning.message) for warning in caught],
        "residual": plain(largest([values - y[0]])),
    }


CONVERGENCE, OVER_LENGTHS = Way("convergence", measure_convergence), Way("lengths", measure_lengths)
