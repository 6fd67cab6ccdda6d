"""States as products with weights read them, where that is not as the rest of a formula does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elman.ir.graph import Node, Rate, walk, with_args


def read_by_products(roots: Sequence[Node], instead: Mapping[Node, Node]) -> list[Node]:
    """A formula in which products with weight matrices read other values.

    rewrite, with h -> d:  R @ (r * h) + h  ->  R @ (r * d) + h

    A product inside the operand of another reads the others too, and its own result is one value.

    Args:
        roots: what is computed.
        instead: by value what takes its place in the operands of products.
    """
    plain: dict[Node, Node] = {}  # as the formula reads it
    inside: dict[Node, Node] = {}  # as a product reads it
    for old in walk(roots, stop=lambda value: value in instead):
        if old in instead:
            plain[old], inside[old] = old, instead[old]
        elif old.op == "matmul" and old.args[1].rate >= Rate.STATE:
            matrix, vector = old.args
            plain[old] = inside[old] = with_args(old, (plain[matrix], inside[vector]))
        else:
            args, others = ([way[arg] for arg in old.args] for way in (plain, inside))
            plain[old] = with_args(old, tuple(args))
            inside[old] = plain[old] if args == others else with_args(old, tuple(others))
    return [plain[root] for root in roots]
