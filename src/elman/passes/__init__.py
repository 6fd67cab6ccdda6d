"""All rewrites of a formula. Hoisting and taping are partitions of the graph, not rewrites."""

from __future__ import annotations

from collections.abc import Callable

from elman.ir.graph import Graph
from elman.passes.simplify import share, simplify

PASSES: tuple[Callable[[Graph], Graph], ...] = (simplify, share)  # then canonical: Graph -> Step


def rewritten(graph: Graph) -> Graph:
    """Apply all passes."""
    for rewrite in PASSES:
        graph = rewrite(graph)
    return graph
