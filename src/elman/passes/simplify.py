"""Drop what computes nothing."""

from __future__ import annotations

from elman.ir.graph import Graph, Node, with_args


def _number(value: Node) -> float | None:
    return value.number if value.op == "const" else None


def _simpler(old: Node, args: tuple[Node, ...]) -> Node:
    if old.op == "neg" and args[0].op == "neg":
        return args[0].args[0]
    if old.op == "transpose" and args[0].op == "transpose":
        return args[0].args[0]
    if old.op in ("add", "sub") and _number(args[1]) == 0.0 and args[0].shape == old.shape:
        return args[0]
    if old.op == "add" and _number(args[0]) == 0.0 and args[1].shape == old.shape:
        return args[1]
    if old.op in ("mul", "div") and _number(args[1]) == 1.0 and args[0].shape == old.shape:
        return args[0]
    if old.op == "mul" and _number(args[0]) == 1.0 and args[1].shape == old.shape:
        return args[1]
    if old.op == "split" and args[0].shape[0] == old.shape[0]:
        return args[0]
    if old.op == "concat" and len(args) == 1:
        return args[0]
    return with_args(old, args)


def simplify(graph: Graph) -> Graph:
    """Remove identities.

    rewrite: --v -> v;  v + 0, v - 0, 1 * v, v / 1 -> v;  split(v, 1), concat(v), v.T.T -> v
    keeps: every value, up to the sign of zero.
    """
    return graph.rebuilt(_simpler)
