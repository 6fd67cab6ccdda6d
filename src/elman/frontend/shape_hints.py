"""What to write in place of operands whose shapes do not fit, for messages."""

from __future__ import annotations

from elman.ir.graph import Node

OUTER = (  # all products of a unit of one vector with a unit of another
    "all pairs of units are a vector [N], N = H * H: spread(v, A) * (P @ k), A being such a "
    'vector, and P a constant, constants="P[N, H]", P=torch.eye(H).repeat(H, 1)'
)


def elementwise_hint(left: Node, right: Node) -> str:
    """For operands of an elementwise op that do not broadcast."""
    if len(left.shape) != len(right.shape):
        return (
            "what follows inputs or states is a vector, never a matrix: W @ v, or, of all pairs of "
            'units, weights="w[N]" with N = H * H and spread(v, w)'
        )
    if (1,) in (left.shape[0], right.shape[0]):
        return "sum(v) of one unit [1] is that unit as a scalar, which meets every vector"
    if len(left.shape) == len(right.shape) == 1:
        for wide, narrow in ((left.shape[0], right.shape[0]), (right.shape[0], left.shape[0])):
            parts = len(wide) // len(narrow)
            if parts > 1 and narrow * parts == wide:
                return f"split the wide operand first: split(v, {parts})"
    return "values of one elementwise op have the same dims, or one is a scalar"


def product_hint(left: Node, right: Node) -> str:
    """For an ``@`` that is not a matrix times a vector."""
    ranks = len(left.shape), len(right.shape)
    if ranks == (1, 1):
        v, h = (
            (value.name, other)[bool(value.args)] for value, other in ((left, "v"), (right, "h"))
        )
        return f"the dot product of two vectors is sum({v} * {h})"
    if ranks == (1, 2):
        return "the left side of @ is a weight matrix: W @ v, or W.T @ v"
    if ranks == (2, 2):
        return "the right side of @ is a vector: write U @ (V @ h) for a product"
    return "a scalar is multiplied by *: m * v"
