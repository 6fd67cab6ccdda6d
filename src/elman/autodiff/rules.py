"""One VJP row per op: the cotangents of the arguments, given the result's.

A row takes ``b`` (the builder), the node and its cotangent ``d``, and returns one node per
argument, or None if no gradient flows. Rows ignore broadcasting: ``adjoint`` sums over units for
scalars.
"""

from __future__ import annotations

from collections.abc import Callable

from elman.ir.build import Builder
from elman.ir.graph import Node
from elman.ir.ops import FLAT

Row = Callable[[Builder, Node, Node], tuple[Node | None, ...]]


def _one_minus(b: Builder, v: Node) -> Node:
    return b.lin([(-1.0, v)], 1.0)


def _lin(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    return tuple(b.scale(coef, d) for coef in n.coefs)


def _mul(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    return b.mul(d, n.args[1]), b.mul(d, n.args[0])


def _div(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    # torch's order: (d / y) · quotient would be NaN where d / y is infinite and the quotient 0
    by_divisor = b.mul(d, b.apply("div", (n, n.args[1])))
    return b.apply("div", (d, n.args[1])), b.scale(-1.0, by_divisor)


def _where_positive(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    # where the value is NaN the cotangent passes, as in torch
    return (b.make("where", (b.make("le", (n, b.const(0.0))), b.const(0.0), d)),)


def _where(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    condition, zero = n.args[0], b.const(0.0)
    return None, b.make("where", (condition, d, zero)), b.make("where", (condition, zero, d))


def _pick(worse: str) -> Row:
    """min and max, as in torch: the selected argument gets d, each of two equal ones half of it,
    and both get d at NaN."""

    def row(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
        x, y = n.args
        cotangent = b.make("where", (b.make("eq", (x, y)), b.scale(0.5, d), d))
        first = b.make("where", (b.make(worse, (x, y)), b.const(0.0), cotangent))
        second = b.make("where", (b.make(worse, (y, x)), b.const(0.0), cotangent))
        return first, second

    return row


def _softplus(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    steep = b.make("gt", (n.args[0], b.const(20.0)))  # where the value is v itself
    return (b.make("where", (steep, d, b.mul(d, b.make("sigmoid", n.args)))),)


def _erf(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    bell = b.make("exp", (b.scale(-1.0, b.mul(n.args[0], n.args[0])),))
    return (b.mul(d, b.scale(1.1283791670955126, bell)),)  # 2 / sqrt(π)


def _square_plus_one(b: Builder, v: Node) -> Node:
    return b.lin([(1.0, b.mul(v, v))], 1.0)


def _atan(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    return (b.apply("div", (d, _square_plus_one(b, n.args[0]))),)


def _asinh(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    return (b.apply("div", (d, b.make("sqrt", (_square_plus_one(b, n.args[0]),)))),)


def _pow(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    """As in torch: nothing flows to v where w is 0, nor to w where v is 0 and w is not negative."""
    v, w = n.args
    zero = b.const(0.0)
    power = b.make("pow", (v, b.lin([(1.0, w)], -1.0)))
    if w.op == "const" and w.number == 1.5:  # sqrt is far cheaper than pow
        power = b.make("sqrt", (v,))
    by_v = b.make("where", (b.make("eq", (w, zero)), zero, b.mul(d, b.mul(w, power))))
    flat = b.mul(b.make("eq", (v, zero)), b.make("ge", (w, zero)))
    by_w = b.make("where", (flat, zero, b.mul(d, b.mul(n, b.make("log", (v,))))))
    return by_v, by_w


def _remainder(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    """The divisor's cotangent is -d · floor(v / w); the quotient is rebuilt from the remainder,
    since v / w itself may round up to the next integer."""
    v, w = n.args
    rounded = b.make("round", (b.apply("div", (b.lin([(1.0, v), (-1.0, n)]), w)),))
    # v divided by an infinity of the other sign: the floor is -1, and the remainder is w
    quotient = b.make("where", (b.make("eq", (n, w)), b.const(-1.0), rounded))
    is_zero = b.make("eq", (w, b.const(0.0)))
    quotient = b.make("where", (is_zero, b.apply("div", n.args), quotient))
    return d, b.scale(-1.0, b.mul(d, quotient))


def _clip_gradient(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    limit = n.args[1]
    clipped = b.make("maximum", (d, b.scale(-1.0, limit)))
    return b.make("minimum", (clipped, limit)), None


def _count(b: Builder, n: Node) -> Node:
    return b.make("count", (), tuple(gate_block for arg in n.args for gate_block in arg.shape[0]))


def _share(b: Builder, n: Node, d: Node, coef: float = 1.0) -> Node:
    """A cotangent divided by the number of units of a group."""
    if n.shape:
        d = b.mul(d, b.make("count", (), n.shape[0]))
    return b.apply("div", (b.scale(coef, d), _count(b, n)))


def _spread(b: Builder, n: Node, value: Node, arg: Node) -> Node:
    """A number per group of a reduction, repeated for the units of its group; scalars stay
    scalars."""
    return b.make("spread", (value,), (), arg.shape) if n.shape and value.shape else value


def _sum(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    return tuple(_spread(b, n, d, arg) for arg in n.args)


def _mean(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    portion = _share(b, n, d)
    return tuple(_spread(b, n, portion, arg) for arg in n.args)


def _var(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    mean = b.make("mean", n.args, (), n.shape)
    portion = _share(b, n, d, 2.0)
    return tuple(
        b.mul(_spread(b, n, portion, arg), b.lin([(1.0, arg), (-1.0, _spread(b, n, mean, arg))]))
        for arg in n.args
    )


def _amax(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    hits = [b.make("eq", (arg, _spread(b, n, n, arg))) for arg in n.args]
    portion = b.apply("div", (d, b.make("sum", hits, (), n.shape)))
    return tuple(
        b.mul(_spread(b, n, portion, arg), hit) for arg, hit in zip(n.args, hits, strict=True)
    )


def _cumsum(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    return (b.make("cumsum", (d,), () if n.backward_in_units else ("R",), n.shape),)


def _none(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    return tuple(None for _ in n.args)


def _matmul(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    matrix, vector = n.args
    if n.transposed:
        back = b.make("matmul", (matrix, d), (), (matrix.shape[0],))
        return b.make("outer", (vector, d), (), matrix.shape), back
    back = b.make("matmul", (matrix, d), ("T",), (matrix.shape[1],))
    return b.make("outer", (d, vector), (), matrix.shape), back


def _bmm(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    left, right = n.args
    if "L" in n.data:
        pairs = ((right, d), ("R",)), ((left, d), ())
    elif "R" in n.data:
        pairs = ((d, right), ()), ((d, left), ("L",))
    else:
        pairs = ((d, right), ("R",)), ((left, d), ("L",))
    return tuple(
        b.make("bmm", args, data, arg.shape)
        for arg, (args, data) in zip(n.args, pairs, strict=True)
    )


def _outer(b: Builder, n: Node, d: Node) -> tuple[Node | None, ...]:
    left, right = n.args
    return (
        b.make("matmul", (d, right), (), left.shape),
        b.make("matmul", (d, left), ("T",), right.shape),
    )


VJP: dict[str, Row] = {
    "lin": _lin,
    "mul": _mul,
    "div": _div,
    "tanh": lambda b, n, d: (b.mul(d, _one_minus(b, b.mul(n, n))),),
    "sigmoid": lambda b, n, d: (b.mul(d, b.mul(n, _one_minus(b, n))),),
    "relu": _where_positive,
    "exp": lambda b, n, d: (b.mul(d, n),),
    "log": lambda b, n, d: (b.apply("div", (d, n.args[0])),),
    "sqrt": lambda b, n, d: (b.apply("div", (b.scale(0.5, d), n)),),
    "abs": lambda b, n, d: (b.mul(d, b.make("sign", n.args)),),
    "sin": lambda b, n, d: (b.mul(d, b.make("cos", n.args)),),
    "cos": lambda b, n, d: (b.scale(-1.0, b.mul(d, b.make("sin", n.args))),),
    "erf": _erf,
    "softplus": _softplus,
    "atan": _atan,
    "asinh": _asinh,
    "expm1": lambda b, n, d: (b.mul(d, b.lin([(1.0, n)], 1.0)),),
    "pow": _pow,
    "remainder": _remainder,
    "minimum": _pick("gt"),
    "maximum": _pick("lt"),
    "where": _where,
    **dict.fromkeys((*FLAT, "uniform"), _none),
    "surrogate": lambda b, n, d: (None, b.mul(d, n.args[2]), None),
    "clip_gradient": _clip_gradient,
    "sum": _sum,
    "mean": _mean,
    "var": _var,
    "amax": _amax,
    "spread": lambda b, n, d: (b.make("sum", (d,), (), n.args[0].shape),),
    "tile": lambda b, n, d: (b.make("fold", (d,), (), n.args[0].shape),),
    "fold": lambda b, n, d: (b.make("tile", (d,), (), n.args[0].shape),),
    "cumsum": _cumsum,
    "place": lambda b, n, d: (b.make("cut", (d,), n.data, n.args[0].shape),),
    "cut": lambda b, n, d: (b.make("place", (d,), n.data, n.args[0].shape),),
    "swapaxes": lambda b, n, d: (b.make("swapaxes", (d,), (), n.args[0].shape),),
    "roll": lambda b, n, d: (b.make("roll", (d,), (-n.data[0],)),),
    "matmul": _matmul,
    "bmm": _bmm,
    "outer": _outer,
    "transpose": lambda b, n, d: (b.make("transpose", (d,), (), n.args[0].shape),),
}
