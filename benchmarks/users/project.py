"""What a project's model is to the suite: how it is made, what it is given, what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import elman.nn
from benchmarks.cases import OURS, Case
from benchmarks.problem import Contestant, Problem, Results, named
from elman.frontend.cell import Cell

Weights = Mapping[str, Tensor]
ENGINES = {OURS: "auto", f"{OURS}-c": "c", f"{OURS}-reference": "reference"}


@dataclass(frozen=True)
class Project:
    """A model by a project's loop and by elman.

    Every module is called with x [T, B, I] and what is given; it returns its output, a cotangent of
    which is ``Problem.dy``, and its last states.

    Attributes:
        ways: what makes the module of a case, by contestant; ``"loop"`` is the project's own, whose
            initialisation all contestants get.
        ours: the same for elman, with the name of an engine.
        given: further arguments of a case, drawn from a generator in float32.
        learned: how many of these, counted from the first one, want a gradient.
        moved: brings weights of the ways, or their gradients, under the names and into the layout
            of elman's module, whose own stay where there is none; without it they are the same.
        tamed: what is done to the drawn weights.
        once: weights that multiply once per sequence, not in each step.
        drawn: in training, modules draw random numbers of their own: what is compared is what they
            compute where they do not train.
    """

    ways: Mapping[str, Callable[[Case], nn.Module]]
    ours: Callable[[Case, str], nn.Module]
    given: Callable[[Case, torch.Generator], tuple[Tensor, ...]] = lambda case, source: ()
    learned: int = 0
    moved: Callable[[Weights], dict[str, Tensor]] = dict
    tamed: Callable[[str, Tensor], Tensor] = lambda name, weight: weight
    inputs: Callable[[Tensor], Tensor] = lambda x: x
    outputs: Callable[[Case], int] = field(default=lambda case: case.H)
    once: frozenset[str] = frozenset()
    drawn: bool = False


class Layer(nn.Module):
    """One layer of a cell on elman, called as the project's module is."""

    def __init__(self, layer: nn.Module, call: Callable[..., tuple[Tensor, Any]]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor, *given: Tensor) -> tuple[Tensor, Any]:
        """Outputs [T, B, H] and the last states."""
        return self.call(self.layer, x, *given)


def layer_of(
    cell: Cell, call: Callable[..., Any] = nn.Module.__call__, **options: Any
) -> Callable[[Case, str], nn.Module]:
    """What makes such a layer, with dims and options of the cell.

    Args:
        call: of the layer, x and what is given.
    """

    def make(case: Case, engine: str) -> nn.Module:
        sizes = (case.input_size, case.H)
        return Layer(elman.nn.Recurrent(cell, *sizes, engine=engine, **options), call)

    return make


def draw_project(project: Project, case: Case, seed: int = 0) -> Problem:
    """Draw x and dy from N(0, 1), weights as the project's loop initialises them."""
    dtype = getattr(torch, case.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = project.ways["loop"](case)
        x = project.inputs(torch.randn(case.T, case.B, case.input_size, dtype=dtype))
        dy = torch.randn(case.T, case.B, project.outputs(case), dtype=dtype)
    weights = {
        name: project.tamed(name, weight.detach()).to(dtype)
        for name, weight in module.state_dict().items()
    }
    return Problem(case, x, dy, weights, case.T * case.B, project.once)


def entered(project: Project, name: str, problem: Problem) -> Contestant | str:
    """A contestant, or why it is absent: one of the project's ways, or elman on an engine."""
    case, ours = problem.case, name in ENGINES
    if not ours and name not in project.ways:
        return f"nobody wrote {case.name.split()[0]} that way"
    module = project.ours(case, ENGINES[name]) if ours else project.ways[name](case)
    moved = project.moved if ours else dict
    module.to(problem.x.dtype)
    module.load_state_dict({**module.state_dict(), **moved(problem.weights)})
    source = torch.Generator().manual_seed(case.B)
    given = [
        value.to(problem.x.dtype).requires_grad_(place < project.learned)
        for place, value in enumerate(project.given(case, source))
    ]
    x = problem.x.clone().requires_grad_()
    inputs = {"x": x, **{f"input {k}": value for k, value in enumerate(given[: project.learned])}}
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    leaves = [*inputs.values(), *parameters.values()]

    def run() -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        output, last = module(x, *given)
        return output, last, torch.autograd.grad(output, leaves, problem.dy)

    def results() -> Results:
        module.train(not project.drawn)
        output, last, grads = run()
        module.train()
        of_inputs = dict(zip(inputs, grads, strict=False))
        of_weights = dict(zip(parameters, grads[len(inputs) :], strict=True))
        brought = of_weights if ours else project.moved(of_weights)
        by_name = {f"gradient of {k}": grad for k, grad in (of_inputs | brought).items()}
        return named(output, last) | by_name

    facts = partial(elman.nn.choices, module) if ours else dict
    return Contestant(run, results, (*inputs, *parameters), facts)
