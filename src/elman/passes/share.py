"""Say everything once."""

from __future__ import annotations

from elman.ir.graph import Graph, Node, by_bits, with_args
from elman.ir.ops import DISTINCT


def share(graph: Graph) -> Graph:
    """Make equal formulas one node.

    rewrite: split(W @ x, 3)[0] + split(W @ x, 3)[1] -> one product, read twice
    keeps: every value, bit for bit. What flows back to equal formulas is summed before it is
        multiplied with their derivative, which may be infinite. Gradients that are clipped apart
        stay apart (:data:`~elman.ir.ops.DISTINCT`).
    """
    seen: dict[object, Node] = {}

    def shared(old: Node, args: tuple[Node, ...]) -> Node:
        new = with_args(old, args)
        if new.op in DISTINCT:
            return new
        return seen.setdefault((new.op, new.args, by_bits(new.data), new.shape), new)

    return graph.rebuilt(shared)
