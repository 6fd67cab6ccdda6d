"""The pipeline on one screen: cell -> graph -> canonical step -> pair -> job; ``tuning/kernels``
has an engine make the kernel."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from elman.autodiff.adjoint import adjoint
from elman.engines.base import Job
from elman.frontend.cell import Cell
from elman.ir.build import Builder
from elman.ir.graph import Graph, Node
from elman.ir.pair import Pair
from elman.ir.stand_ins import without_stand_ins
from elman.passes import rewritten
from elman.passes.canonical import canonical
from elman.passes.draws import SAMPLED, draws, expected
from elman.passes.merge import MERGED_STEPS, merge_steps, step_input
from elman.passes.simplify import share
from elman.passes.static import Split, split_static
from elman.plan.spec import Spec
from elman.tuning.request import Rule


def graph_of(cell: Cell, rules: tuple[Rule, ...] = ()) -> Graph:
    """The step of a cell as written, under the rules of options. What depends on static inputs is
    held by further states, the last ones."""
    return _split_of(cell, rules).step


def holds(cell: Cell, rules: tuple[Rule, ...] = ()) -> bool:
    """Whether values are computed once per sequence: of static inputs, or weights that meet a
    matrix per sample."""
    return bool(cell.static or once_of(cell, rules))


def once_of(cell: Cell, rules: tuple[Rule, ...] = ()) -> tuple[Node, ...]:
    """Values of static inputs and weights that are computed once per sequence, as further
    states."""
    return _split_of(cell, rules).once


@lru_cache(maxsize=256)
def _split_of(cell: Cell, rules: tuple[Rule, ...]) -> Split:
    graph = cell.graph
    for rule in rules:
        graph = rule.rewrite(graph)
    return split_static(share(expected(graph)), [entry.name for entry in cell.static])


def training_rules(cell: Cell) -> tuple[Rule, ...]:
    """The rule by which a cell that draws random numbers is trained, if it is one."""
    per = draws(cell.graph)
    return (SAMPLED[per],) if per else ()


def pair_of(cell: Cell, rules: tuple[Rule, ...] = ()) -> Pair:
    """The canonical step of a cell and its adjoint; sizes and dtype play no part yet."""
    return _pair_of(cell, rules)


@lru_cache(maxsize=256)
def _pair_of(cell: Cell, rules: tuple[Rule, ...]) -> Pair:
    return build_pair(graph_of(cell, rules))


def build_pair(graph: Graph) -> Pair:
    """The canonical step of a graph and its adjoint."""
    builder = Builder()
    step = canonical(rewritten(graph), builder)
    return without_stand_ins(adjoint(step, builder), builder)


def job(cell: Cell, spec: Spec, rules: tuple[Rule, ...] = ()) -> Job:
    """Build the job of a cell for an engine."""
    return _job(cell, spec, rules)


@lru_cache(maxsize=1024)
def _job(cell: Cell, spec: Spec, rules: tuple[Rule, ...]) -> Job:
    single = None
    cell = cell.sample
    if cell.whole is not None and not cell.static and _has_like_heads(cell.whole):
        single = job(cell.whole, spec, rules)
    heads = 1 if single is None else cell.heads
    name = "_".join((cell.name, *(rule.name for rule in rules)))
    graph, pair = graph_of(cell, rules), pair_of(cell, rules)
    return Job(name, graph, pair, spec, heads, single, multi_step_job(name, graph, spec))


def multi_step_job(name: str, graph: Graph, spec: Spec, steps: int = MERGED_STEPS) -> Job | None:
    """The job of several steps as one; None if they cannot be merged."""
    several = merge_steps(graph, steps)
    if several is None:
        return None
    of_inputs = spec.wants - {leaf.name for leaf in graph.weights}
    of_steps = {step_input(wanted, step) for wanted in of_inputs for step in range(steps)}
    wants = spec.wants - of_inputs | of_steps
    several_spec = replace(spec, wants=wants, steps=steps)
    return Job(f"{name}_{steps}_steps", several, build_pair(several), several_spec)


def _has_like_heads(cell: Cell) -> bool:
    """Whether a head is the cell itself at a smaller size: no dim that is divided is a number, all
    states and outputs are divided, no argument is divided in part, and no random numbers are drawn,
    which differ from head to head."""
    dims = cell.division.dims
    if any(isinstance(gate_block, int) for gate_block in dims):
        return False
    for value in (*cell.graph.states, *cell.graph.outputs):
        if not value.shape or not dims.issuperset(value.shape[0]):
            return False
    for leaf in cell.graph.leaves:
        if any(not dims.isdisjoint(dim) and not dims.issuperset(dim) for dim in leaf.shape):
            return False
    return all(value.op != "draw" for value in cell.graph.walk())


def release() -> None:
    """Forget graphs and jobs; those that are still asked for are made again."""
    for cached in (_split_of, _pair_of, _job):
        cached.cache_clear()
