"""How each op is spelled in ONNX's operators: one row per op, or the reason why there is none.

Values are arrays whose last axis has the units; a scalar has one unit, so all of them broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from elman.export.onnx.writer import FLOAT, Writer
from elman.ir.graph import Node

Spelling = Callable[[Writer, Node, Sequence[str]], str]


def operator(kind: str) -> Spelling:
    """An op that is one operator."""
    return lambda w, node, args: w.emit(kind, *args)


def _lin(w: Writer, node: Node, args: Sequence[str]) -> str:
    total = w.constant(node.bias or -0.0)  # which changes no number
    for coef, arg in zip(node.coefs, args, strict=True):
        total = w.emit("Add", total, w.emit("Mul", arg, w.constant(coef)))
    return total


def _number(w: Writer, truth: str) -> str:
    """1 where true, else 0; an index as a number."""
    return w.emit("Cast", truth, to=FLOAT)


def _compared(kind: str) -> Spelling:
    return lambda w, node, args: _number(w, w.emit(kind, *args))


def _differs(w: Writer, a: str, b: str) -> str:
    return w.emit("Not", w.emit("Equal", a, b))


def _where(w: Writer, node: Node, args: Sequence[str]) -> str:
    condition, yes, no = args
    return w.emit("Where", _differs(w, condition, w.constant(0.0)), yes, no)


def _expm1(w: Writer, node: Node, args: Sequence[str]) -> str:
    """tanh(x/2) · (exp(x) + 1), exact near 0."""
    half = w.emit("Tanh", w.emit("Mul", args[0], w.constant(0.5)))
    return w.emit("Mul", half, w.emit("Add", w.emit("Exp", args[0]), w.constant(1.0)))


def _remainder(w: Writer, node: Node, args: Sequence[str]) -> str:
    """Of the divisor's sign; Mod's is the dividend's."""
    a, b = args
    rest, zero = w.emit("Mod", a, b, fmod=1), w.constant(0.0)
    other = w.emit("Xor", w.emit("Less", rest, zero), w.emit("Less", b, zero))
    wrong = w.emit("And", _differs(w, rest, zero), other)
    return w.emit("Where", wrong, w.emit("Add", rest, b), rest)


def _reduced(kind: str) -> Spelling:
    """Over the last axis, which stays for a scalar; args: all units, or those of each group."""
    return lambda w, node, args: w.emit(kind, args[0], w.integers(-1), keepdims=int(not node.shape))


def _var(w: Writer, node: Node, args: Sequence[str]) -> str:
    mean = w.emit("ReduceMean", args[0], w.integers(-1), keepdims=1)
    off = w.emit("Sub", args[0], mean)
    return _reduced("ReduceMean")(w, node, [w.emit("Mul", off, off)])


def _argmax(w: Writer, node: Node, args: Sequence[str]) -> str:
    return _number(w, w.emit("ArgMax", args[0], axis=-1, keepdims=int(not node.shape)))


def _cumsum(w: Writer, node: Node, args: Sequence[str]) -> str:
    return w.emit("CumSum", args[0], w.integers(-1), reverse=int(node.backward_in_units))


SPELL: dict[str, Spelling] = {
    "lin": _lin,
    "add": operator("Add"),
    "sub": operator("Sub"),
    "neg": operator("Neg"),
    "mul": operator("Mul"),
    "div": operator("Div"),
    "tanh": operator("Tanh"),
    "sigmoid": operator("Sigmoid"),
    "relu": operator("Relu"),
    "exp": operator("Exp"),
    "log": operator("Log"),
    "sqrt": operator("Sqrt"),
    "abs": operator("Abs"),
    "sin": operator("Sin"),
    "cos": operator("Cos"),
    "erf": operator("Erf"),
    "atan": operator("Atan"),
    "expm1": _expm1,
    "floor": operator("Floor"),
    "round": operator("Round"),
    "pow": operator("Pow"),
    "remainder": _remainder,
    "softplus": operator("Softplus"),
    "minimum": operator("Min"),
    "maximum": operator("Max"),
    "where": _where,
    "lt": _compared("Less"),
    "le": _compared("LessOrEqual"),
    "gt": _compared("Greater"),
    "ge": _compared("GreaterOrEqual"),
    "eq": _compared("Equal"),
    "ne": lambda w, node, args: _number(w, _differs(w, *args)),
    "stop": operator("Identity"),
    "sum": _reduced("ReduceSum"),
    "mean": _reduced("ReduceMean"),
    "var": _var,
    "amax": _reduced("ReduceMax"),
    "argmax": _argmax,
    "spread": lambda w, node, args: args[0],  # args: as wide as all groups
    "one_hot": _compared("Equal"),  # args: that, and the numbers of units
    "cumsum": _cumsum,
    "transpose": lambda w, node, args: w.emit("Transpose", args[0], perm=[1, 0]),
}
REASONS: dict[str, str] = {  # why an op has no row
    "sign": "it is of derivatives alone",
    "outer": "it is of derivatives alone",
    "draw": "random numbers are those of training",
    "uniform": "random numbers are those of training",
    "training": "it is settled before: what is exported is the formula in eval()",
    "surrogate": "it is its first argument, as a step alone has no derivative",
    "clip_gradient": "it is its first argument, as a step alone has no derivative",
}
# of shapes and places, which a spelling does not know: export/onnx/step.py has them
STRUCTURAL = ("split", "concat", "matmul", "count")
