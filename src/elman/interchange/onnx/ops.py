"""The spelling of each op in ONNX's operators, or why it has none; layers that are operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from elman.interchange.onnx.writer import FLOAT, INT32, Writer
from elman.interchange.weights.arrays import Kind
from elman.ir.graph import Node
from elman.ir.ops import OF_MATRICES, POINTWISE

Spelling = Callable[[Writer, Node, Sequence[str]], str]


def operator(kind: str) -> Spelling:
    """An op that is one operator."""
    return lambda w, node, args: w.emit(kind, *args)


def _lin(w: Writer, node: Node, args: Sequence[str]) -> str:
    total = w.constant(node.bias or -0.0)  # which changes no number
    for coef, arg in zip(node.coefs, args, strict=True):
        total = w.emit("Add", total, w.emit("Mul", arg, w.constant(coef)))
    return total


def _to_float(w: Writer, truth: str) -> str:
    """1 where true, else 0; an index as a number."""
    return w.emit("Cast", truth, to=FLOAT)


def _comparison(kind: str) -> Spelling:
    return lambda w, node, args: _to_float(w, w.emit(kind, *args))


def _not_equal(w: Writer, a: str, b: str) -> str:
    return w.emit("Not", w.emit("Equal", a, b))


def _where(w: Writer, node: Node, args: Sequence[str]) -> str:
    condition, if_true, if_false = args
    return w.emit("Where", _not_equal(w, condition, w.constant(0.0)), if_true, if_false)


def _expm1(w: Writer, node: Node, args: Sequence[str]) -> str:
    """tanh(x/2) · (exp(x) + 1), exact near 0."""
    half = w.emit("Tanh", w.emit("Mul", args[0], w.constant(0.5)))
    return w.emit("Mul", half, w.emit("Add", w.emit("Exp", args[0]), w.constant(1.0)))


def _remainder(w: Writer, node: Node, args: Sequence[str]) -> str:
    """Remainder with the divisor's sign; Mod has the dividend's."""
    a, b = args
    modulo, zero = w.emit("Mod", a, b, fmod=1), w.constant(0.0)
    signs_differ = w.emit("Xor", w.emit("Less", modulo, zero), w.emit("Less", b, zero))
    wrong = w.emit("And", _not_equal(w, modulo, zero), signs_differ)
    return w.emit("Where", wrong, w.emit("Add", modulo, b), modulo)


def _reduction(kind: str) -> Spelling:
    """Over the last axis, which stays for a scalar; args: all units, or those of each group."""
    return lambda w, node, args: w.emit(kind, args[0], w.integers(-1), keepdims=int(not node.shape))


def _var(w: Writer, node: Node, args: Sequence[str]) -> str:
    mean = w.emit("ReduceMean", args[0], w.integers(-1), keepdims=1)
    off = w.emit("Sub", args[0], mean)
    return _reduction("ReduceMean")(w, node, [w.emit("Mul", off, off)])


def _argmax(w: Writer, node: Node, args: Sequence[str]) -> str:
    return _to_float(w, w.emit("ArgMax", args[0], axis=-1, keepdims=int(not node.shape)))


def _cumsum(w: Writer, node: Node, args: Sequence[str]) -> str:
    return w.emit("CumSum", args[0], w.integers(-1), reverse=int(node.backward_in_units))


REASONS: dict[str, str] = {  # why an op has no row
    "sign": "it is of derivatives alone",
    "outer": "it is of derivatives alone",
    **dict.fromkeys(("tile", "fold", "per_sample", *OF_MATRICES), "it is of matrices per sample"),
    "draw": "random numbers are those of training",
    "uniform": "random numbers are those of training",
    "training": "it is settled before: what is exported is the formula in eval()",
    "surrogate": "it is its first argument, as a step alone has no derivative",
    "clip_gradient": "it is its first argument, as a step alone has no derivative",
}
SPELL: dict[str, Spelling] = {
    **{name: operator(name.title()) for name in POINTWISE if name not in REASONS},
    "lin": _lin,
    "expm1": _expm1,
    "remainder": _remainder,
    "minimum": operator("Min"),
    "maximum": operator("Max"),
    "where": _where,
    "lt": _comparison("Less"),
    "le": _comparison("LessOrEqual"),
    "gt": _comparison("Greater"),
    "ge": _comparison("GreaterOrEqual"),
    "eq": _comparison("Equal"),
    "ne": lambda w, node, args: _to_float(w, _not_equal(w, *args)),
    "stop": operator("Identity"),
    "sum": _reduction("ReduceSum"),
    "mean": _reduction("ReduceMean"),
    "var": _var,
    "amax": _reduction("ReduceMax"),
    "argmax": _argmax,
    "spread": lambda w, node, args: args[0],  # args: as wide as all groups
    "one_hot": _comparison("Equal"),  # args: that, and the numbers of units
    "cumsum": _cumsum,
    "transpose": lambda w, node, args: w.emit("Transpose", args[0], perm=[1, 0]),
}
# of shapes and places, which a spelling does not know: interchange/onnx/step.py has them
STRUCTURAL = ("split", "concat", "matmul", "count")


KINDS = {"rnn": "RNN", "gru": "GRU", "gru_before": "GRU", "lstm": "LSTM", "lstm_peephole": "LSTM"}
_MISSING = ""  # an input that is left out


class Layer(NamedTuple):
    """Output and last states of a layer.

    Attributes:
        out: [T, B, H · directions].
        last: states [directions, B, H] after the last step.
    """

    out: str
    last: tuple[str, ...]


def emit_operator(
    w: Writer,
    kind: Kind,
    x: str,
    states: Sequence[str],
    arrays: Mapping[str, Any],
    suffix: str,
    lengths: str | None = None,
) -> Layer:
    """Emit a layer, all its directions, as one operator.

    Args:
        w: of the graph.
        kind: of the recurrence.
        x: [T, B, I].
        states: initial ones [directions, B, H].
        arrays: W, R and maybe B, P, by :func:`elman.weights.to_arrays`.
        suffix: of the arrays' names.
        lengths [B]: steps of each sequence; None: all of them.
    """
    directions, _, units = arrays["R"].shape
    names = {name: w.array(f"{name}_{suffix}", value) for name, value in arrays.items()}
    inputs = [x, names["W"], names["R"], names.get("B", _MISSING)]
    inputs.append(_MISSING if lengths is None else w.emit("Cast", lengths, to=INT32))
    inputs += states
    attributes: dict[str, Any] = {"hidden_size": units}
    if directions == 2:
        attributes["direction"] = "bidirectional"
    if kind.name in ("gru", "gru_before"):
        attributes["linear_before_reset"] = int(kind.name == "gru")
    if kind.relu:
        attributes["activations"] = ["Relu"] * directions
    if "P" in names:
        inputs.append(names["P"])
    outputs = [*(w.name(KINDS[kind.name]) for _ in (x, *states))]
    w.emit_node(KINDS[kind.name], inputs, outputs, **attributes)
    if directions == 1:
        return Layer(w.emit("Squeeze", outputs[0], w.integers(1)), tuple(outputs[1:]))
    directions_last = w.emit("Transpose", outputs[0], perm=[0, 2, 1, 3])  # [T, B, directions, H]
    return Layer(w.emit("Reshape", directions_last, w.integers(0, 0, -1)), tuple(outputs[1:]))
