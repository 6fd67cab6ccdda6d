"""Say everything once."""

from __future__ import annotations

from elman.ir.graph import Graph, Node, with_args


def share(graph: Graph) -> Graph:
    """Make equal formulas one node.

    rewrite: split(W @ x, 3)[0] + split(W @ x, 3)[1] -> one product, read twice
    keeps: every value, bit for bit.
    """
    seen: dict[object, Node] = {}

    def shared(old: Node, args: tuple[Node, ...]) -> Node:
        made = with_args(old, args)
        return seen.setdefault((made.op, made.args, made.data, made.shape), made)

    return graph.rebuilt(shared)
