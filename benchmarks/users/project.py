"""Models of projects: how they are built, their arguments and results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

import elman.nn
from benchmarks.cases import OURS, Case
from benchmarks.problem import Contestant, Problem, Results, draw, named
from benchmarks.programs import ROOT

Weights = Mapping[str, Tensor]
ENGINES = {OURS: "auto", f"{OURS}-c": "c", f"{OURS}-reference": "reference"}


@dataclass(frozen=True)
class Project:
    """A model by a project's loop and by elman.

    Every module is called with x [T, B, I] and further arguments; it returns its output, a
    cotangent of which is ``Problem.dy``, and its last states.

    Attributes:
        ways: what makes the module of a case, by contestant; the first one is the project's own,
            whose initialisation all contestants get.
        fused: the same for elman.
        arguments: further arguments of a case, drawn from a generator in float32.
        learned: how many of these, counted from the first one, want a gradient.
        moved: brings weights of the ways, or their gradients, under the names and into the layout
            of elman's module, whose own stay where there is none; without it they are the same.
        tamed: what is done to the drawn weights.
        once: weights that multiply once per sequence, not in each step.
        random: in training, modules draw random numbers of their own: what is compared is what they
            compute where they do not train.
    """

    ways: Mapping[str, Callable[[Case], nn.Module]]
    fused: Callable[[Case], nn.Module]
    arguments: Callable[[Case, torch.Generator], tuple[Tensor, ...]] = lambda case, source: ()
    learned: int = 0
    moved: Callable[[Weights], dict[str, Tensor]] = dict
    tamed: Callable[[str, Tensor], Tensor] = lambda name, weight: weight
    inputs: Callable[[Tensor], Tensor] = lambda x: x
    outputs: Callable[[Case], int] = field(default=lambda case: case.H)
    once: frozenset[str] = frozenset()
    random: bool = False


def example_of(script: str) -> Any:
    """A script of ``examples/projects``, with the models ``Before`` and ``After``, by its name."""
    folder = str(ROOT / "examples" / "projects")
    if folder not in sys.path:
        sys.path.append(folder)  # scripts import ``compare`` from beside them
    return import_module(script)


def project_of(script: str, **fields: Any) -> Project:
    """The models of a script, which take units and features; with fields of :class:`Project`."""
    example = example_of(script)

    def make(model: Callable[[int, int], nn.Module], case: Case) -> nn.Module:
        return model(case.H, case.input_size)

    before, after = partial(make, example.Before), partial(make, example.After)
    return Project({"loop": before}, after, moved=example.moved, **fields)


def on_engine(module: nn.Module, engine: str) -> nn.Module:
    """Set the engine of all of a module's elman layers."""
    layers: list[Any] = [layer for layer in module.modules() if hasattr(layer, "engine")]
    for layer in layers:
        layer.engine = engine
    return module


def draw_project(project: Project, case: Case, seed: int = 0) -> Problem:
    """Draw x and dy from N(0, 1), weights as the project's loop initialises them."""
    sizes = (case.T, case.B, case.input_size), (case.T, case.B, project.outputs(case))
    initial = next(iter(project.ways.values()))
    weights, (x, dy) = draw(lambda: initial(case), case, seed, *sizes)
    weights = {name: project.tamed(name, weight) for name, weight in weights.items()}
    return Problem(case, project.inputs(x), dy, weights, case.T * case.B, project.once)


def enter_project(
    project: Project, name: str, problem: Problem, half: torch.dtype | None = None
) -> Contestant | str:
    """A contestant, or why it is absent: one of the project's ways, or elman on an engine; its
    forward runs under autocast for ``half``, if given."""
    case, fused = problem.case, name in ENGINES
    if not fused and name not in project.ways:
        return f"nobody wrote {case.name.split()[0]} that way"
    module = on_engine(project.fused(case), ENGINES[name]) if fused else project.ways[name](case)
    moved = project.moved if fused else dict
    module.to(problem.x.dtype)
    module.load_state_dict({**module.state_dict(), **moved(problem.weights)})
    source = torch.Generator().manual_seed(case.B)
    arguments = [
        value.to(problem.x.dtype).requires_grad_(place < project.learned)
        for place, value in enumerate(project.arguments(case, source))
    ]
    inputs = {"x": problem.x.clone().requires_grad_()}
    inputs |= {f"input {k}": value for k, value in enumerate(arguments[: project.learned])}
    parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
    leaves = [*inputs.values(), *parameters.values()]
    trains = case.measure.backward

    def run() -> tuple[Tensor, Any, tuple[Tensor, ...]]:
        cast = nullcontext() if half is None else torch.autocast("cpu", half)
        with torch.set_grad_enabled(trains), cast:
            output, last = module(inputs["x"], *arguments)
        grads = torch.autograd.grad(output, leaves, problem.dy.to(output.dtype)) if trains else ()
        return output, last, grads

    def results() -> Results:
        module.train(not project.random)
        output, last, grads = run()
        module.train()
        if not trains:
            return named(output, last)
        of_weights = dict(zip(parameters, grads[len(inputs) :], strict=True))
        of_weights = of_weights if fused else project.moved(of_weights)
        by_leaf = dict(zip(inputs, grads, strict=False)) | of_weights
        return named(output, last) | {f"gradient of {k}": grad for k, grad in by_leaf.items()}

    facts = partial(elman.nn.choices, module) if fused else dict
    return Contestant(run, results, (*inputs, *parameters) if trains else (), facts)
