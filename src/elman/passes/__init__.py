"""All rewrites of a formula. Hoisting and taping are partitions of the graph, not rewrites."""

from __future__ import annotations

from collections.abc import Callable

from elman.ir.graph import Graph
from elman.passes.simplify import share, simplify

# identities first: without them more formulas are equal; canonical, Graph -> Step, follows
PASSES: tuple[Callable[[Graph], Graph], ...] = (simplify, share)


def rewritten(graph: Graph) -> Graph:
    """Apply all passes."""
    for rewrite in PASSES:
        graph = rewrite(graph)
    return graph
