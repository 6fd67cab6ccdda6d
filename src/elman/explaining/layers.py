"""What is explained: a layer, and what runs it."""

from __future__ import annotations

from dataclasses import dataclass

from elman import compiler
from elman.engines import registry
from elman.engines.base import Job
from elman.frontend.cell import Cell
from elman.ir.graph import Graph
from elman.ir.pair import Pair
from elman.plan.build import program
from elman.plan.program import Program
from elman.plan.spec import Spec
from elman.tuning.choose import Choice, choose
from elman.tuning.kernels import candidates
from elman.tuning.request import Rule

Picked = Choice | dict[str, str]  # what runs a layer; where nothing was benchmarked, who cannot
WHY = {  # Choice.why -> where a choice comes from, in words
    "named": "asked for by name",
    "only": "the only one that can",
    "benchmarked": "benchmarked now",
    "near": "benchmarked at the most similar sizes",
    "remembered": "benchmarked before, remembered",
    "deterministic": "the first that can; deterministic algorithms forbid benchmarking",
    "pinned": "pinned by a checkpoint",
}


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer in one direction, and how it is called.

    Attributes:
        name: suffix of its weights' names, ``l0``, ``l1_reverse``; the cell's name for a cell.
        cell: its formula.
        spec: sizes, dtype, device, wanted gradients.
        steps, batch: T and B.
        engine: what is asked for, a name or ``auto``.
        elsewhere: why the module leaves the layer to torch's own instead, if it does.
        choice: what the layer has chosen already, if it has.
        checkpoint: steps between two kept states; 0: everything is kept.
        group: number of the layers that run together with it.
        rules: how options change its step; that of a cell that draws random numbers in training.
    """

    name: str
    cell: Cell
    spec: Spec
    steps: int
    batch: int
    engine: str = "auto"
    elsewhere: str | None = None
    choice: Choice | None = None
    checkpoint: int = 0
    group: int = 0
    rules: tuple[Rule, ...] = ()

    @property
    def graph(self) -> Graph:
        """The formula as it runs."""
        return compiler.graph_of(self.cell, self.rules)

    @property
    def pair(self) -> Pair:
        """Its canonical step, and the adjoint."""
        return compiler.pair_of(self.cell, self.rules)

    @property
    def job(self) -> Job:
        """What an engine is asked for."""
        return compiler.job(self.cell, self.spec, self.rules)

    @property
    def at_once(self) -> int:
        """Steps that its engine is given at once."""
        return min(self.steps, self.checkpoint or self.steps)


def choice_of(layer: Layer, measure: bool) -> Picked:
    """What runs a layer; where nothing may be benchmarked, why the others do not."""
    if layer.elsewhere is not None:
        return {}
    if layer.choice is not None:
        return layer.choice
    of = layer.job
    if measure and layer.cell.states:
        return choose(of, layer.at_once, layer.batch, layer.engine)
    return candidates(of, asked(layer), layer.at_once, layer.batch)[1]


def asked(layer: Layer) -> tuple[str, ...]:
    """Names of the engines that a layer may run on."""
    return registry.names() if layer.engine == "auto" else (layer.engine,)


def program_of(layer: Layer, choice: Picked) -> Program:
    """The program of what runs a layer, or what it would be."""
    known = getattr(choice.kernel, "program", None) if isinstance(choice, Choice) else None
    return known or program(layer.pair, layer.spec)
