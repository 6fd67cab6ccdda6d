"""Remove identities and share common subexpressions."""

from __future__ import annotations

from elman.ir.graph import Graph, Node, by_bits, with_args
from elman.ir.ops import DISTINCT


def share(graph: Graph) -> Graph:
    """Make equal formulas one node.

    rewrite: split(W @ x, 3)[0] + split(W @ x, 3)[1] -> one product, read twice
    keeps: every value, bit for bit. Cotangents of equal formulas are summed before they are
        multiplied by the derivative, which may be infinite. Gradients that are clipped apart stay
        apart (:data:`~elman.ir.ops.DISTINCT`).
    """
    nodes: dict[object, Node] = {}

    def shared(old: Node, args: tuple[Node, ...]) -> Node:
        new = with_args(old, args)
        if new.op in DISTINCT:
            return new
        return nodes.setdefault((new.op, new.args, by_bits(new.data), new.shape), new)

    return graph.rebuilt(shared)


def _is_number(number: float, value: Node) -> bool:
    """Whether a value is a number, bit for bit."""
    return value.op == "const" and value.number.hex() == number.hex()


# right operands that change no number, -0.0 included: -0.0 + 0.0 is 0.0, so 0.0 is not neutral
_NOTHING = {"add": -0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}


def _simpler(old: Node, args: tuple[Node, ...]) -> Node:
    if old.op == "neg" and args[0].op == "neg":
        return args[0].args[0]
    if old.op == "transpose" and args[0].op == "transpose":
        return args[0].args[0]
    neutral = _NOTHING.get(old.op)
    if neutral is not None and _is_number(neutral, args[1]) and args[0].shape == old.shape:
        return args[0]
    if neutral is not None and old.op in ("add", "mul"):
        if _is_number(neutral, args[0]) and args[1].shape == old.shape:
            return args[1]
    if old.op == "split" and args[0].shape[0] == old.shape[0]:
        return args[0]
    if old.op == "concat" and len(args) == 1:
        return args[0]
    return with_args(old, args)


def simplify(graph: Graph) -> Graph:
    """Remove identities.

    rewrite: --v -> v;  v + -0, v - 0, 1 * v, v / 1 -> v;  split(v, 1), concat(v), v.T.T -> v
    keeps: every value, bit for bit.
    """
    return graph.rebuilt(_simpler)
