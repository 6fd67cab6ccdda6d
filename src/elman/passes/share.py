"""Say everything once."""

from __future__ import annotations

from elman.ir.graph import Graph, Node, by_bits, with_args


def share(graph: Graph) -> Graph:
    """Make equal formulas one node.

    rewrite: split(W @ x, 3)[0] + split(W @ x, 3)[1] -> one product, read twice
    keeps: every value, bit for bit.
    """
    seen: dict[object, Node] = {}

    def shared(old: Node, args: tuple[Node, ...]) -> Node:
        new = with_args(old, args)
        return seen.setdefault((new.op, new.args, by_bits(new.data), new.shape), new)

    return graph.rebuilt(shared)
