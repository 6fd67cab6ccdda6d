"""Elementwise functions, split and concat for cell authors; re-exported as ``elman.ops``."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

from elman.frontend.dims import check_cut
from elman.frontend.draws import dropout, noise, uniform, zoneout
from elman.frontend.heads import cut_dim, traced_dim
from elman.frontend.lines import describe, mismatch, refuse, where_called
from elman.frontend.trace import (
    Tracer,
    is_number,
    lift,
    matrix_shape,
    per_sample,
    pointwise,
    power_of,
    reblocked,
    vector_dim,
)
from elman.ir.graph import Node, node
from elman.ir.types import (
    Axis,
    Dim,
    Shape,
    axis_of,
    is_matrix,
    matrix_axes,
    parse_dim,
    parts_of,
    show_dim,
)

__all__ = [
    "abs",
    "asinh",
    "atan",
    "clip",
    "concat",
    "cos",
    "dropout",
    "erf",
    "exp",
    "expm1",
    "floor",
    "gelu",
    "log",
    "maximum",
    "minimum",
    "noise",
    "pow",
    "relu",
    "remainder",
    "round",
    "sigmoid",
    "silu",
    "sin",
    "softplus",
    "split",
    "sqrt",
    "stop_gradient",
    "tanh",
    "uniform",
    "where",
    "zoneout",
]


def _elementwise(name: str, summary: str, example: str) -> Callable[[Any], Tracer]:
    """The function of an op of one value."""

    def apply(v: Any) -> Tracer:
        return pointwise(name, v)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{summary}\n\n    Example:\n        >>> {example}\n    "
    return apply


tanh = _elementwise("tanh", "Hyperbolic tangent, elementwise.", "h = tanh(W @ x + R @ h + b)")
sigmoid = _elementwise(
    "sigmoid", "1 / (1 + exp(-v)), elementwise.", "z = sigmoid(W @ x + R @ h + b)"
)
relu = _elementwise(
    "relu",
    "max(v, 0), elementwise; NaN stays NaN, the derivative at 0 is 0.",
    "h = relu(W @ x + R @ h)",
)
exp = _elementwise("exp", "e to the power v, elementwise.", "h = exp(-b * b) * h + W @ x")
log = _elementwise("log", "Natural logarithm, elementwise.", "c = c + log(1 + h * h)")
sqrt = _elementwise("sqrt", "Square root, elementwise.", "h = h / sqrt(1 + mean(h * h))")
sin = _elementwise("sin", "Sine, elementwise.", "h = sin(W @ x + R @ h)")
cos = _elementwise("cos", "Cosine, elementwise.", "h = cos(W @ x) * h")
erf = _elementwise("erf", "Error function, elementwise.", "h = erf(W @ x + R @ h)")
softplus = _elementwise(
    "softplus",
    "log(1 + exp(v)), elementwise; v itself above 20, as in torch.",
    "step = softplus(W @ x + b)",
)
atan = _elementwise("atan", "Arc tangent, elementwise.", "h = atan(W @ x + R @ h)")
asinh = _elementwise("asinh", "Inverse hyperbolic sine, elementwise.", "h = asinh(W @ x + R @ h)")
expm1 = _elementwise(
    "expm1",
    "exp(v) - 1 without cancellation near 0, elementwise.",
    "h = exp(-b * b) * h - expm1(-b * b) * (W @ x)",
)
floor = _elementwise(
    "floor",
    "The largest whole number that is at most v, elementwise; its derivative is 0.",
    "h = h - floor(h)",
)


def abs(v: Any) -> Any:  # torch's name
    """Absolute value, elementwise; the derivative at 0 is 0. Python's ``abs`` of a number.

    Example:
        >>> h = h / (1 + abs(W @ x))
    """
    return builtins.abs(v) if is_number(v) else pointwise("abs", v)


def silu(v: Any) -> Tracer:
    """v · sigmoid(v), elementwise.

    Example:
        >>> h = silu(W @ x + R @ h)
    """
    return pointwise("mul", v, sigmoid(v))


def gelu(v: Any) -> Tracer:
    """v · Φ(v) with the exact normal distribution function (torch's default), elementwise.

    Example:
        >>> h = gelu(W @ x + R @ h)
    """
    return pointwise("mul", v, 0.5 * (1.0 + erf(pointwise("mul", v, 0.7071067811865476))))


def round(v: Any, *digits: int) -> Any:  # torch's name
    """The nearest integer, halves to even as in torch, elementwise; its derivative is 0.

    For the gradient of v, write ``straight_through(round(v), v)``. Python's ``round`` of a number.

    Example:
        >>> h = straight_through(round(h), h)
    """
    if is_number(v):  # Python's has no whole number for infinity and NaN
        return builtins.round(v, *digits) if math.isfinite(v) else v
    if digits:
        refuse("round gives whole numbers, it takes no digits", "0.01 * round(100 * v)")
    return pointwise("round", v)


def pow(v: Any, w: Any) -> Any:  # torch's name
    """v ** w, elementwise; either may be a number. Whole powers up to 8 are products. Python's
    ``pow`` of two numbers.

    Example:
        >>> h = h * pow(1 + h * h, -0.5)
    """
    if is_number(v) and is_number(w):
        return _power_of_numbers(v, w)
    return power_of(v, w)


def _power_of_numbers(v: float, w: float) -> float:
    """Python's power, or torch's where Python raises or leaves the real numbers: infinity and NaN
    (C11, F.10.4.4)."""
    try:
        power = v**w
    except (ZeroDivisionError, OverflowError):
        return math.copysign(math.inf, v) if w % 2 == 1 else math.inf
    return math.nan if isinstance(power, complex) else power


def remainder(v: Any, w: Any) -> Tracer:
    """v % w, elementwise: what is left of v, with the sign of w, as torch.remainder.

    The gradient is 1 to v and -floor(v / w) to w.

    Example:
        >>> phase = remainder(c + b, 1.0)
    """
    return pointwise("remainder", v, w)


def minimum(a: Any, b: Any) -> Tracer:
    """The smaller of two values, elementwise; at a tie each gets half the gradient, as in torch.

    Example:
        >>> c = minimum(c, W @ x)
    """
    return pointwise("minimum", a, b)


def maximum(a: Any, b: Any) -> Tracer:
    """The larger of two values, elementwise; at a tie each gets half the gradient, as in torch.

    Example:
        >>> c = maximum(c, W @ x)
    """
    return pointwise("maximum", a, b)


def clip(v: Any, low: Any, high: Any) -> Tracer:
    """v clipped to [low, high], as torch.clamp: at the bounds the gradient goes to v, outside to
    the bound, at NaN nowhere. If the bounds cross, the value is high.

    Example:
        >>> h = clip(W @ x + R @ h, -1.0, 1.0)
    """
    inside = pointwise("mul", pointwise("ge", v, low), pointwise("le", v, high))
    clipped = stop_gradient(minimum(maximum(v, low), high))
    if isinstance(low, Tracer):  # which has a gradient of its own
        below = pointwise("mul", pointwise("lt", v, low), pointwise("lt", low, high))
        clipped = where(below, low, clipped)
    if isinstance(high, Tracer):
        clipped = where(pointwise("gt", maximum(v, low), high), high, clipped)
    return where(inside, v, clipped)


def where(condition: Any, a: Any, b: Any) -> Tracer:
    """a where the condition is not 0, else b; comparisons give 1 or 0.

    Example:
        >>> h = where(h > 0, h, 0.1 * h)
    """
    return pointwise("where", condition, a, b)


def stop_gradient(v: Any) -> Tracer:
    """v itself, with no gradient through it.

    Example:
        >>> h = h + stop_gradient(c - h)
    """
    return pointwise("stop", v)


def _cut(value: Node, dims: list[Dim]) -> list[Tracer]:
    line = where_called()
    tracers: list[Tracer] = []
    start = 0
    for dim in dims:
        data = (start, start + len(dim))
        tracers.append(Tracer(node("split", (value,), data, (dim, *value.shape[1:]), line)))
        start += len(dim)
    return tracers


def split(v: Any, parts: Any) -> list[Tracer]:
    """Split a vector (or the rows of a matrix) into equal parts, or into parts of named dims.

    ``split(v, 3)`` of [3H] returns three of [H]; ``split(v, "H, H, P")`` returns unequal parts.
    ``split(v, 2)`` of [8] returns two of [4].

    Raises:
        TraceError: the parts do not make up the vector.

    Example:
        >>> r, z, n = split(V @ x, 3)
    """
    value = lift(v)
    if is_matrix(value):
        return _split_rows(value, parts)
    if not value.shape:
        vector_dim(value, "split")
    return _cut(value, _parts(value.shape[0], parts))


def _split_rows(matrix: Node, parts: Any) -> list[Tracer]:
    """The rows of a matrix per sample [2K, V] in parts, each a matrix."""
    rows, columns = matrix_axes(matrix)
    dim = cut_dim(parts_of(rows))
    dims = _parts(dim, parts)
    cut = _cut(reblocked(matrix, _of_rows(dim, columns)), [_of_rows(d, columns) for d in dims])
    pairs = zip(cut, dims, strict=True)
    return [Tracer(reblocked(part.node, matrix_shape(d, (columns,))[0])) for part, d in pairs]


def _of_rows(dim: Dim, columns: Axis) -> Dim:
    """A matrix for each part of its rows."""
    return tuple((axis_of((part,)), columns) for part in dim)


def _parts(dim: Dim, parts: Any) -> list[Dim]:
    """The dims of equal parts, or of those that a text names. Raises TraceError: they do not make
    up the dim."""
    if isinstance(parts, str):
        try:
            dims = [traced_dim(parse_dim(part)) for part in parts.split(",")]
        except ValueError as reason:
            refuse(f"split: {reason}", 'name the parts, e.g. split(v, "H, H, P")')
        check_cut((sum_of(dims),), (dim,))
        if sum_of(dims) != dim:
            refuse(
                f"cannot split [{show_dim(dim)}] into {parts!r},"
                f" which is [{show_dim(sum_of(dims))}]",
                "the parts, in order, are the whole vector",
            )
        return dims
    if type(parts) is not int or parts < 1:
        refuse(f"split takes a number of parts or their dims, not {parts!r}", "split(v, 3)")
    width, rest = divmod(len(dim), parts)
    runs = [dim[i * width : (i + 1) * width] for i in range(parts)]
    if rest or any(run != runs[0] for run in runs):
        check_cut(_equal_parts(dim, parts), (dim,))
        refuse(f"cannot split [{show_dim(dim)}] into {parts} equal parts", _parts_hint(dim, parts))
    return runs


def _parts_hint(dim: Dim, count: int) -> str:
    """Hint for a split that is not into equal parts."""
    unequal = 'for unequal parts name them: split(v, "H, H, P")'
    names = [name for name in dim if isinstance(name, str)]
    if len(dim) != 1 or not names:
        return unequal
    return f"a vector that is cut is declared by its parts: [{count}P] in place of [{names[0]}]"


def _equal_parts(dim: Dim, count: int) -> Shape:
    """A dim of numbers alone as ``count`` equal numbers; otherwise the dim itself."""
    numbers = [gate_block for gate_block in dim if isinstance(gate_block, int)]
    part, rest = divmod(sum(numbers), count)
    return (dim,) if rest or len(numbers) < len(dim) else (cut_dim((part,) * count),)


def sum_of(dims: list[Dim]) -> Dim:
    """The dim that several dims make when they are joined."""
    return tuple(gate_block for dim in dims for gate_block in dim)


def concat(*vectors: Any) -> Tracer:
    """Join vectors, or matrices along their rows: [I] and [H] give [I+H], matrices per sample
    [K, V] and [P, V] give [K+P, V].

    Raises:
        TraceError: one is a scalar.
        ShapeError: matrices have unlike columns.

    Example:
        >>> h = tanh(M @ concat(x, h))
    """
    values = [lift(vector) for vector in vectors]
    if any(map(is_matrix, values)):
        return _concat_rows([per_sample(value) for value in values])
    if not values:
        refuse("concat of nothing", "concat(x, h)")
    for value in values:
        if not value.shape:
            refuse(
                f"cannot concat {describe(value)}: it is not a vector",
                "spread(s, v) is a scalar s as a vector, at each unit of v; W @ x is a vector",
            )
        check_cut(value.shape[1:], values[0].shape[1:])
        if value.shape[1:] != values[0].shape[1:]:
            raise mismatch(
                "concat", values[0], value, "matrices that are joined have equal columns"
            )
    dim = sum_of([value.shape[0] for value in values])
    return Tracer(node("concat", values, (), (dim, *values[0].shape[1:]), where_called()))


def _concat_rows(values: list[Node]) -> Tracer:
    """Matrices per sample [K, V] and [P, V] one below the other: [K+P, V]."""
    for value in values:
        if not is_matrix(value) or matrix_axes(value)[1] != matrix_axes(values[0])[1]:
            hint = "matrices that are joined have equal columns; concat(S.T, A.T).T joins columns"
            raise mismatch("concat", values[0], value, hint)
    columns = matrix_axes(values[0])[1]
    dim = sum_of([value.shape[0] for value in values])
    rows = sum_of([parts_of(matrix_axes(value)[0]) for value in values])
    below = node("concat", values, (), (dim,), where_called())
    return Tracer(reblocked(below, matrix_shape(rows, (columns,))[0]))
