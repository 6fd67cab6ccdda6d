"""Who runs a case: each contestant gets the same weights, the same x and the same cotangent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import elman.cells
import elman.nn
from elman.bench.cases import Case
from elman.bench.loops import LOOPS

BUILT_IN: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "rnn": (nn.RNN, elman.nn.RNN),
    "gru": (nn.GRU, elman.nn.GRU),
    "lstm": (nn.LSTM, elman.nn.LSTM),
}
Results = dict[str, Tensor]
Call = Callable[[Tensor], tuple[Tensor, Any]]


@dataclass(frozen=True, eq=False)
class Problem:
    """Random numbers for a case.

    Attributes:
        x [T, B, I]: input.
        dy [T, B, H]: cotangent of the output, dense.
        weights: by name, one layer's.
    """

    case: Case
    x: Tensor
    dy: Tensor
    weights: Mapping[str, Tensor]

    def double(self) -> Problem:
        """The same numbers in float64."""
        weights = {name: value.double() for name, value in self.weights.items()}
        return Problem(self.case, self.x.double(), self.dy.double(), weights)

    @property
    def flop(self) -> int:
        """Of the products, two per multiplication; a backward step has two for each forward one."""
        case = self.case
        elements = sum(w.numel() for w in self.weights.values() if w.dim() == 2)
        return (6 if case.measure == "train" else 2) * elements * case.T * case.B


@dataclass(frozen=True, eq=False)
class Contestant:
    """Ready to run.

    Attributes:
        run: one training step, or one forward; what is timed.
        results: run once, and name what came out: ``output``, ``last 0``, ``gradient of x`` …
        wants: what gradients are asked for.
        facts: what ran, after it has run; JSON-able.
    """

    run: Callable[[], Any]
    results: Callable[[], Results]
    wants: tuple[str, ...]
    facts: Callable[[], dict[str, Any]]


def draw_problem(case: Case, seed: int = 0) -> Problem:
    """Draw x and dy from N(0, 1), weights as their module draws them."""
    dtype = getattr(torch, case.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _torch_layer(case) if case.cell in BUILT_IN else _recurrent(case, "auto")
        x = torch.randn(case.T, case.B, case.input_size, dtype=dtype)
        dy = torch.randn(case.T, case.B, case.H, dtype=dtype)
    weights = {name: _tamed(w.detach()).to(dtype) for name, w in module.state_dict().items()}
    return Problem(case, x, dy, weights)


def _tamed(weight: Tensor) -> Tensor:
    """Gains of 1 become 1/2: with 1 a normalised LSTM of random weights is chaotic.

    Rounding then grows with every step (a relative error of 1e-3 after 100, in torch as in elman),
    and agreement would tell nothing.
    """
    return weight / 2 if bool((weight == 1).all()) else weight


def enter(name: str, problem: Problem) -> Contestant | str:
    """A contestant for a problem, or why it is absent."""
    return CONTESTANTS[name](problem)


def _torch_layer(case: Case) -> nn.Module:
    return BUILT_IN[case.cell][0](case.input_size, case.H)


def _recurrent(case: Case, engine: str) -> nn.Module:
    cell = getattr(elman.cells, case.cell)
    return elman.nn.Recurrent(cell, case.input_size, case.H, engine=engine)


def _torch(problem: Problem) -> Contestant | str:
    """torch's own layer."""
    if problem.case.cell not in BUILT_IN:
        return f"torch.nn has no {problem.case.cell}"
    return _of_module(problem, _torch_layer(problem.case), dict)


def _elman(problem: Problem, engine: str) -> Contestant | str:
    """elman's module on one engine, or on the one that measures best."""
    case = problem.case
    if case.cell in BUILT_IN:
        module: nn.Module = BUILT_IN[case.cell][1](case.input_size, case.H, engine=engine)
    else:
        module = _recurrent(case, engine)
    return _of_module(problem, module, partial(elman.nn.choices, module))


def _loop(problem: Problem) -> Contestant | str:
    """A loop over torch ops."""
    loop = LOOPS.get(problem.case.cell)
    if loop is None:
        return f"no loop is written for {problem.case.cell}"
    weights = {name: w.clone().requires_grad_() for name, w in problem.weights.items()}
    short = {name.removesuffix("_l0"): w for name, w in weights.items()}
    return _contestant(problem, lambda x: loop(x, short), weights, dict)


def _of_module(
    problem: Problem, module: nn.Module, facts: Callable[[], dict[str, Any]]
) -> Contestant:
    module.to(problem.x.dtype).load_state_dict(dict(problem.weights))
    return _contestant(problem, module, dict(module.named_parameters()), facts)


def _contestant(
    problem: Problem, call: Call, weights: Mapping[str, Tensor], facts: Callable[[], dict[str, Any]]
) -> Contestant:
    if problem.case.measure == "forward":
        return _forward(problem, call, facts)
    x = problem.x.clone().requires_grad_()
    wants, leaves, dy = ("x", *weights), (x, *weights.values()), problem.dy

    def run() -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        output, last = call(x)
        return output, last, torch.autograd.grad(output, leaves, dy)

    def results() -> Results:
        output, last, grads = run()
        named = {f"gradient of {name}": grad for name, grad in zip(wants, grads, strict=True)}
        return _named(output, last) | named

    return Contestant(run, results, wants, facts)


def _forward(problem: Problem, call: Call, facts: Callable[[], dict[str, Any]]) -> Contestant:
    def run() -> tuple[Tensor, Any]:
        with torch.no_grad():
            return call(problem.x)

    return Contestant(run, lambda: _named(*run()), (), facts)


def _named(output: Tensor, last: Any) -> Results:
    """Output and last states by name; torch's leading axis of layers is dropped."""
    states = last if isinstance(last, tuple) else (last,)
    named = {f"last {k}": state.detach() for k, state in enumerate(states)}
    flat = {name: state.reshape(state.shape[-2:]) for name, state in named.items()}
    return {"output": output.detach(), **flat}


CONTESTANTS: dict[str, Callable[[Problem], Contestant | str]] = {
    "torch": _torch,
    "loop": _loop,
    "elman": partial(_elman, engine="auto"),
    "elman-c": partial(_elman, engine="c"),
    "elman-aten": partial(_elman, engine="aten"),
}
