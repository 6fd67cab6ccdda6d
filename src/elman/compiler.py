"""The pipeline on one screen: cell -> graph -> canonical step -> pair -> job, and on to an
engine."""

from __future__ import annotations

from functools import lru_cache

from elman.autodiff.adjoint import adjoint
from elman.engines.base import Job, Kernel
from elman.engines.registry import find
from elman.errors import EngineError
from elman.frontend.cell import Cell
from elman.ir.build import Builder
from elman.ir.graph import Graph, walk
from elman.ir.ops import OPS
from elman.ir.pair import Pair
from elman.ir.verify import verified, verified_pair
from elman.passes import PASSES
from elman.passes.canonical import canonical
from elman.passes.digest import digest as digest_of
from elman.plan.spec import Spec


@lru_cache(maxsize=256)
def pair_of(cell: Cell) -> Pair:
    """The canonical step of a cell and its adjoint; sizes and dtype play no part yet."""
    return paired(cell.graph)


def paired(graph: Graph) -> Pair:
    """The canonical step of a graph and its adjoint."""
    graph = verified(graph)
    for rewrite in PASSES:
        graph = verified(rewrite(graph))
    builder = Builder()
    return verified_pair(adjoint(canonical(graph, builder), builder))


@lru_cache(maxsize=1024)
def job(cell: Cell, spec: Spec) -> Job:
    """What an engine is asked for."""
    single = None
    if cell.whole is not None and _has_like_heads(cell.whole):
        single = job(cell.whole, spec)
    heads = 1 if single is None else cell.heads
    return Job(cell.name, cell.graph, pair_of(cell), spec, heads, single)


def _has_like_heads(cell: Cell) -> bool:
    """Whether a head is the cell itself at a smaller size: no dim that is divided is a number, and
    nothing reads all units, those of other heads too, as a reduction does, or a product that is not
    divided among heads, of a value that is."""
    how = cell.division
    if any(isinstance(atom, int) for atom in how.dims):
        return False
    for value in cell.graph.walk():
        if OPS[value.op].kind == "reduce" or value.op == "count":
            return False
        if value.op == "matmul":
            matrix, vector = value.args
            own = {leaf.name for leaf in walk((matrix,)) if leaf.op == "weight"}
            if how.dims.intersection(vector.shape[0]) and not own <= how.blocks:
                return False
    return True


def digest(of: Job) -> str:
    """The name of the job's formula: equal for cells that are the same step under other weights."""
    return digest_of(of.pair.step)


def compile(cell: Cell, spec: Spec, engine: str, schedule: str | None = None) -> Kernel:
    """Turn a cell into a kernel of one engine.

    Raises:
        EngineError: the engine cannot run it; the text is the engine's own reason.
    """
    wanted = job(cell, spec)
    made = find(engine)
    reason = made.supports(wanted)
    if reason is not None:
        raise EngineError(f"engine {engine!r} cannot run {cell.name}: {reason}")
    return made.compile(wanted, schedule)
