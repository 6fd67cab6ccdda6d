"""Contestants of a case: each gets the same weights, the same x and the same cotangent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import elman.nn
from benchmarks.cases import OURS, Case, Way
from benchmarks.measures.training import measure_steps
from benchmarks.peers.gru_ladder import LOOPS
from benchmarks.peers.libraries import compile_step, compiled_step, jax_scan, onnxruntime
from benchmarks.peers.loops import TUNED, looped, stepwise
from benchmarks.peers.published import STEPS as PUBLISHED
from benchmarks.peers.steps import STEPS
from benchmarks.problem import Contestant, Problem, draw, named, trained
from benchmarks.workloads.custom_cells import find_cell
from benchmarks.workloads.weight_residency import stepped
from elman import PlanOptions

BUILT_IN: dict[str, tuple[type[nn.Module], type[nn.Module]]] = {
    "rnn": (nn.RNN, elman.nn.RNN),
    "gru": (nn.GRU, elman.nn.GRU),
    "lstm": (nn.LSTM, elman.nn.LSTM),
}
CHECKPOINT = f"{OURS}-checkpoint"  # keeps states as a KeptCase says
MODULES: dict[str, dict[str, Any]] = {  # elman's, by their options
    OURS: {},
    CHECKPOINT: {},
    **{f"{OURS}-{e}": {"engine": e} for e in ("c", "aten", "deer", "scan-backward")},
    f"{OURS}-unmerged": {"engine": "c", "plan": PlanOptions(without="merging")},
    f"{OURS}-apart": {"engine": "c", "plan": PlanOptions(without=("merging", "hoisting"))},
    f"{OURS}-save": {"engine": "c", "plan": PlanOptions("save")},
    f"{OURS}-recompute": {"engine": "c", "plan": PlanOptions("recompute")},
}
Call = Callable[[Tensor], tuple[Tensor, Any]]


@dataclass(frozen=True)
class KeptCase(Case):
    """A case of :data:`CHECKPOINT` too, with so many steps between two kept states."""

    _: KW_ONLY
    checkpoint: int = 0


def draw_layer(case: Case, seed: int = 0) -> Problem:
    """Draw x and dy from N(0, 1), weights as their module draws them."""
    make = _torch_layer if case.cell in BUILT_IN else _elman
    sizes = (case.T, case.B, case.input_size), (case.T, case.B, case.H)
    weights, (x, dy) = draw(lambda: make(case), case, seed, *sizes)
    weights = {name: _tamed(weight) for name, weight in weights.items()}
    return Problem(case, x, dy, weights, case.T * case.B)


def _tamed(weight: Tensor) -> Tensor:
    """Gains of 1 become 1/2: with 1 a normalised LSTM of random weights is chaotic.

    Rounding then grows with every step (a relative error of 1e-3 after 100, in torch as in elman),
    and agreement would tell nothing.
    """
    return weight / 2 if bool((weight == 1).all()) else weight


def enter_layer(name: str, problem: Problem) -> Contestant | str:
    """One of :data:`CONTESTANTS`, or why it is absent."""
    return CONTESTANTS[name](problem)


def _torch_layer(case: Case) -> nn.Module:
    return BUILT_IN[case.cell][0](case.input_size, case.H, case.layers)


def _elman(case: Case, **options: Any) -> nn.Module:
    sizes = (case.input_size, case.H, case.layers)
    if case.cell in BUILT_IN:
        return BUILT_IN[case.cell][1](*sizes, **options)
    return elman.nn.Recurrent(find_cell(case.cell), *sizes, **options)


def module_of(name: str, problem: Problem) -> nn.Module | str:
    """torch's own layers, or elman's on one engine or on the one that measures best, with the
    problem's weights; or why there are none.

    Args:
        name: ``torch``, or a contestant of elman's.
    """
    case = problem.case
    if name == "torch" and case.cell not in BUILT_IN:
        return f"torch.nn has no {case.cell}"
    if name == "torch":
        return _loaded(_torch_layer(case), problem)
    options = MODULES[name]
    if name == CHECKPOINT and isinstance(case, KeptCase):
        options = {"plan": PlanOptions(checkpoint=case.checkpoint)}
    return elman_module(problem, **options)


def elman_module(problem: Problem, **options: Any) -> nn.Module:
    """elman's layers, by their options, with the problem's weights."""
    return _loaded(_elman(problem.case, **options), problem)


def _loaded(module: nn.Module, problem: Problem) -> nn.Module:
    module.to(problem.x.dtype).load_state_dict(dict(problem.weights))
    return module


def _named(problem: Problem, name: str) -> Contestant | str:
    """A contestant that is a module."""
    module = module_of(name, problem)
    if isinstance(module, str):
        return module
    facts = dict if name == "torch" else partial(elman.nn.choices, module)
    return _contestant(problem, module, dict(module.named_parameters()), facts)


def _loop(problem: Problem) -> Contestant | str:
    """A loop over torch ops: the formula, step by step."""
    name, weights = problem.case.cell, leaves_of(problem)
    if name in STEPS:
        return _contestant(problem, lambda x: stepwise(name, x, weights), weights, dict)
    if name not in PUBLISHED:
        return f"no loop is written for {name}"
    cell = find_cell(name)
    dims, short = cell.bind(problem.case.input_size, problem.case.H), _short(weights)
    return _contestant(problem, lambda x: looped(cell, dims, x, short), weights, dict)


def _tuned(problem: Problem) -> Contestant | str:
    """A loop that is written as well as torch allows."""
    if problem.case.cell not in TUNED:
        return f"no loop is written for {problem.case.cell}"
    loop, weights = TUNED[problem.case.cell], leaves_of(problem)
    short = _short(weights)
    return _contestant(problem, lambda x: loop(x, short), weights, dict)


def _operators(problem: Problem, products: str) -> Contestant | str:
    """A loop of a GRU's ladder, by how it calls its products."""
    loop = LOOPS[products].get(problem.case.cell)
    if loop is None:
        return f"no such loop is written for {problem.case.cell}"
    weights = leaves_of(problem)
    return _contestant(problem, lambda x: loop(x, _short(weights)), weights, dict)


def leaves_of(problem: Problem) -> dict[str, Tensor]:
    """The weights, to be differentiated by; not the states that a cell declares to begin with."""
    weights = problem.weights.items()
    return {k: w.clone().requires_grad_() for k, w in weights if not k.startswith("initial_")}


def _short(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by their names in the formula."""
    return {name.removesuffix("_l0"): w for name, w in weights.items()}


def _compiled(problem: Problem) -> Contestant | str:
    """torch.compile of a step, called in a loop."""
    cell = problem.case.cell
    if cell not in STEPS:
        return f"no step is written for {cell}"
    weights, step = leaves_of(problem), compile_step(cell)
    return _contestant(problem, lambda x: compiled_step(x, weights, cell, step), weights, dict)


def _stepped(problem: Problem, cold: bool = False) -> Contestant | str:
    """A product per step, forward alone."""
    return _forward(problem, stepped(problem, cold), dict)


def _contestant(
    problem: Problem, call: Call, weights: Mapping[str, Tensor], facts: Callable[[], dict[str, Any]]
) -> Contestant:
    if not problem.case.measure.backward:
        return _forward(problem, call, facts)
    x = problem.x.clone().requires_grad_()

    def forward() -> tuple[tuple[Any, ...], Tensor, Tensor]:
        output, last = call(x)
        return (output, last), output, problem.dy

    return trained(forward, {"x": x, **weights}, facts)


def _forward(problem: Problem, call: Call, facts: Callable[[], dict[str, Any]]) -> Contestant:
    def run() -> tuple[Tensor, Any]:
        with torch.no_grad():
            return call(problem.x)

    return Contestant(run, lambda: named(*run()), (), facts)


CONTESTANTS: dict[str, Callable[[Problem], Contestant | str]] = {
    "torch": partial(_named, name="torch"),
    "loop": _loop,
    "tuned-loop": _tuned,
    "compiled": _compiled,
    "jax": jax_scan,
    "onnxruntime": onnxruntime,
    "stepped": _stepped,
    "reloaded": partial(_stepped, cold=True),
    **{f"operators-{products}": partial(_operators, products=products) for products in LOOPS},
    **{name: partial(_named, name=name) for name in MODULES},
}
_LAYER = (measure_steps, draw_layer, enter_layer)
TRAIN = Way("train", *_LAYER, dense=True, apart=("jax", "onnxruntime"))
FORWARD = Way("forward", *_LAYER, backward=False, apart=("jax", "onnxruntime"))
