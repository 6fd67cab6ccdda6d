"""Who runs a case: each contestant gets the same weights, the same x and the same cotangent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import elman.nn
from elman.bench.cases import Case
from elman.bench.contest import Contestant, Problem, Results, named
from elman.bench.layered import draw_layers, layered
from elman.bench.loops import PLAIN, TUNED, Loop
from elman.bench.peers import compile_step, compiled_step, jax_scan, onnxruntime
from elman.bench.remote import beside, remote
from elman.bench.scanning import draw_scan, jax_associative, loop_scan, own_scan, torch_associative
from elman.bench.steps import STEPS
from elman.bench.unknown import find_cell

BUILT_IN: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "rnn": (nn.RNN, elman.nn.RNN),
    "gru": (nn.GRU, elman.nn.GRU),
    "lstm": (nn.LSTM, elman.nn.LSTM),
}
Call = Callable[[Tensor], tuple[Tensor, Any]]


def draw_problem(case: Case, seed: int = 0) -> Problem:
    """Draw x and dy from N(0, 1), weights as their module draws them."""
    if case.measure in _DRAWN:
        return _DRAWN[case.measure](case, seed)
    dtype = getattr(torch, case.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _torch_layer(case) if case.cell in BUILT_IN else _recurrent(case, "auto")
        x = torch.randn(case.T, case.B, case.input_size, dtype=dtype)
        dy = torch.randn(case.T, case.B, case.H, dtype=dtype)
    weights = {name: _tamed(w.detach()).to(dtype) for name, w in module.state_dict().items()}
    return Problem(case, x, dy, weights, case.T * case.B)


def _tamed(weight: Tensor) -> Tensor:
    """Gains of 1 become 1/2: with 1 a normalised LSTM of random weights is chaotic.

    Rounding then grows with every step (a relative error of 1e-3 after 100, in torch as in elman),
    and agreement would tell nothing.
    """
    return weight / 2 if bool((weight == 1).all()) else weight


def enter(name: str, problem: Problem) -> Contestant | str:
    """A contestant for a problem, or why it is absent."""
    if name in _ELSEWHERE:
        return remote(name, problem)
    if problem.case.kind == "beside" and problem.x.dtype == torch.float32:
        return beside(name, problem)
    return local(name, problem)


def local(name: str, problem: Problem) -> Contestant | str:
    """A contestant in this process, or why it is absent."""
    if problem.case.measure == "layers":
        return layered(name, problem)
    return (SCANS if problem.case.measure == "scan" else CONTESTANTS)[name](problem)


def _torch_layer(case: Case) -> nn.Module:
    return BUILT_IN[case.cell][0](case.input_size, case.H)


def _recurrent(case: Case, engine: str) -> nn.Module:
    return elman.nn.Recurrent(find_cell(case.cell), case.input_size, case.H, engine=engine)


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


def _loop(problem: Problem, loops: Mapping[str, Loop]) -> Contestant | str:
    """A loop over torch ops."""
    loop = loops.get(problem.case.cell)
    if loop is None:
        return f"no loop is written for {problem.case.cell}"
    weights = {name: w.clone().requires_grad_() for name, w in problem.weights.items()}
    short = {name.removesuffix("_l0"): w for name, w in weights.items()}
    return _contestant(problem, lambda x: loop(x, short), weights, dict)


def _compiled(problem: Problem) -> Contestant | str:
    """torch.compile of a step, called in a loop."""
    cell = problem.case.cell
    if cell not in STEPS:
        return f"no step is written for {cell}"
    weights = {name: w.clone().requires_grad_() for name, w in problem.weights.items()}
    step = compile_step(cell)
    return _contestant(problem, lambda x: compiled_step(x, weights, cell, step), weights, dict)


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
        by_name = {f"gradient of {name}": grad for name, grad in zip(wants, grads, strict=True)}
        return named(output, last) | by_name

    return Contestant(run, results, wants, facts)


def _forward(problem: Problem, call: Call, facts: Callable[[], dict[str, Any]]) -> Contestant:
    def run() -> tuple[Tensor, Any]:
        with torch.no_grad():
            return call(problem.x)

    return Contestant(run, lambda: named(*run()), (), facts)


CONTESTANTS: dict[str, Callable[[Problem], Contestant | str]] = {
    "torch": _torch,
    "loop": partial(_loop, loops=PLAIN),
    "tuned-loop": partial(_loop, loops=TUNED),
    "compiled": _compiled,
    "jax": jax_scan,
    "onnxruntime": onnxruntime,
    "elman": partial(_elman, engine="auto"),
    "elman-c": partial(_elman, engine="c"),
    "elman-aten": partial(_elman, engine="aten"),
    "elman-deer": partial(_elman, engine="deer"),
    "elman-scan-backward": partial(_elman, engine="scan-backward"),
}
SCANS: dict[str, Callable[[Problem], Contestant | str]] = {
    "loop": loop_scan,
    "jax": jax_associative,
    "torch": torch_associative,
    "elman": own_scan,
}
_DRAWN: dict[str, Callable[[Case, int], Problem]] = {"scan": draw_scan, "layers": draw_layers}
_ELSEWHERE = ("jax", "onnxruntime")
