"""Tracers: run a cell's Python function once and record the formula as a graph.

Every node remembers the line it was written at, so that a mistake is reported at the user's line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from elman.frontend.dims import check_cut
from elman.frontend.foreign_names import BUILTINS_OF_TWO, BUILTINS_OVER_UNITS, hint_for
from elman.frontend.heads import cut_dim
from elman.frontend.lines import (
    called,
    describe,
    elementwise_hint,
    mismatch,
    product_hint,
    refuse,
    where_called,
)
from elman.ir.graph import Node, Rate, node
from elman.ir.types import Dim, Shape, axis_of, is_matrix, matrix_axes, parts_of, show_shape


def _operator(op: str) -> Callable[[Tracer, Any], Tracer]:
    """An operator of two values; the traced one is on the left."""
    return lambda self, other: pointwise(op, self, other)


def _reflected(op: str) -> Callable[[Tracer, Any], Tracer]:
    """The same with the traced value on the right."""
    return lambda self, other: pointwise(op, other, self)


def _refused(message: str, hint: str) -> Callable[..., Any]:
    """A special method that has no meaning in a formula."""

    def method(self: Tracer, *_: Any, **__: Any) -> NoReturn:
        refuse(message, hint)

    return method


_NOT_A_NUMBER = _refused(
    "a traced value is not a number: math and int()/float() cannot take it",
    "use the function of the same name from elman.ops, e.g. tanh(v) for math.tanh(v)",
)
_NO_TEXT = _refused(
    "a traced value cannot be printed: the cell runs once, before there are numbers",
    "print(elman.explain(cell)) shows the formula; engine='reference' runs it step by step",
)
_NOT_INDEXED = _refused(
    "a traced value cannot be indexed",
    'cut it into parts: a, b = split(v, 2), or split(v, "H, P") for unequal parts',
)
_NO_QUOTIENT = _refused("cells have no //", "write floor(v / w); v % w is what is left")
_NO_BITS = _refused(
    "cells have no & | ^ ~: comparisons give numbers, 1 or 0",
    "write a * b for and, maximum(a, b) for or, 1 - a for not",
)


class Tracer:
    """A value of the cell while it is being traced: operators build nodes."""

    __slots__ = ("node",)

    def __init__(self, value: Node) -> None:
        self.node = value

    @property
    def shape(self) -> tuple[Tracer | int, ...]:
        """Sizes without batch and time: scalars of the formula, numbers where numbers were
        declared."""
        return tuple(_size(dim) for dim in self.node.shape)

    def __repr__(self) -> str:
        return f"<traced {self.node!r}>"

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("sub"), _reflected("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _operator("div"), _reflected("div")
    __mod__, __rmod__ = _operator("remainder"), _reflected("remainder")
    __lt__, __le__ = _operator("lt"), _operator("le")
    __gt__, __ge__ = _operator("gt"), _operator("ge")
    __eq__ = _operator("eq")  # type: ignore[assignment]  # a traced comparison
    __ne__ = _operator("ne")  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]  # values are compared as formulas, never looked up
    __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = _NO_QUOTIENT
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _NO_BITS
    __trunc__ = _refused("cells have no trunc", "write where(v < 0, -floor(-v), floor(v))")
    __float__ = __int__ = __complex__ = _NOT_A_NUMBER
    __str__ = __format__ = _NO_TEXT
    __index__ = _refused(
        "a traced value is not an integer: range() and [] cannot take it",
        "run as many iterations as any sample needs, each under a condition: "
        "for k in range(10): h = where(k < n, next, h)",
    )
    __array__ = _refused(
        "numpy cannot take a traced value", "use the function of that name from elman.ops"
    )
    __getitem__ = __delitem__ = _NOT_INDEXED
    __setitem__ = _refused(
        "a traced value cannot be changed in place",
        "make a new one: where(mask, 1, h), mask being an input, or concat(a, b) of its parts",
    )
    __len__ = _refused(
        "a traced value has no length", "v.shape[0] is its number of units; mean(v), sum(v)"
    )

    def __neg__(self) -> Tracer:
        return pointwise("neg", self)

    def __pos__(self) -> Tracer:
        return self

    def __abs__(self) -> Tracer:
        return pointwise("abs", self)

    def __pow__(self, power: Any) -> Tracer:
        return power_of(self, power)

    def __rpow__(self, base: Any) -> Tracer:
        return power_of(base, self)

    def __matmul__(self, other: Any) -> Tracer:
        return matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tracer:
        return matmul(other, self)

    @property
    def T(self) -> Tracer:  # torch's and numpy's name
        """The transpose of a weight matrix, or of a matrix per sample."""
        return transpose(self)

    def __bool__(self) -> NoReturn:
        if where_called().partition(": ")[2].startswith("while "):
            refuse(
                "a loop cannot depend on values: every sample and every step has the same formula",
                "run as many iterations as any sample needs, each under a condition: "
                "for _ in range(10): h = where(go, next, h)",
            )
        if (name := called()) in BUILTINS_OF_TWO:
            refuse(f"Python's {name}() cannot choose between traced values", BUILTINS_OF_TWO[name])
        refuse(
            "a traced value has no truth value: `if`, `while`, `and`, `or`, `not` cannot use it",
            "use where(condition, a, b) from elman.ops; for several conditions multiply them",
        )

    def __round__(self, digits: Any = None) -> Tracer:
        if digits is not None:
            refuse(
                "a traced value is rounded to whole numbers", "round(v * 100) / 100 has 2 digits"
            )
        return pointwise("round", self)

    def __floor__(self) -> Tracer:
        return pointwise("floor", self)

    def __ceil__(self) -> Tracer:
        return -pointwise("floor", -self)

    def __array_ufunc__(self, func: Any, method: str, *values: Any, **_: Any) -> Tracer:
        """A numpy number on the left of an operator; every other function of numpy is refused."""
        if func.__name__ == "power" and method == "__call__":
            return power_of(*values)
        op = _OPERATORS.get(func.__name__)
        if op is None or method != "__call__":
            refuse(f"numpy.{func.__name__} cannot take a traced value", hint_for(func.__name__))
        return pointwise(op, *values)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        for value in args:
            if _is_tensor(value):
                lift(value)  # refused as any tensor in a formula
        name = getattr(func, "__name__", str(func)).strip("_")
        refuse(f"torch.{name} cannot take a traced value", hint_for(name))

    def __iter__(self) -> NoReturn:
        if (name := called()) in BUILTINS_OVER_UNITS:
            refuse(f"Python's {name}() cannot take a traced value", BUILTINS_OVER_UNITS[name])
        refuse("a traced value cannot be unpacked", "cut it first: a, b = split(v, 2)")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f"a traced value has no .{name}", hint_for(name))


class AlongAxis(Tracer):
    """A vector along the rows [K] or the columns [V] of a matrix per sample, until an elementwise
    op with one tells the other axis; its parts joined.

    Attributes:
        axis: 0 for a value per row, 1 for a value per column.
    """

    __slots__ = ("axis",)

    def __init__(self, value: Node, axis: int) -> None:
        super().__init__(joined(value))
        self.axis = axis

    @property
    def name(self) -> str:
        """The function of ``elman.ops`` that writes it."""
        return ("rows", "columns")[self.axis]

    def to_matrix(self, shape: Shape) -> Tracer:
        """Repeat the vector over the other axis: [K] or [V] to [K, V]. Raises ShapeError: the
        matrix has another number of rows or columns."""
        block = shape[0][0]
        if not isinstance(block, tuple) or self.node.shape != ((block[self.axis],),):
            where = f"a value for each of the {self.name} of"
            raise mismatch(
                f"{self.name}(): repeat",
                self.node,
                node("const", (), (0.0,), shape, where_called()),
                f"{self.name}(v) has {where} S[K, V]: v is [{'KV'[self.axis]}]",
            )
        op = ("spread", "tile")[self.axis]
        return Tracer(node(op, (self.node,), (), shape, where_called()))


def reblocked(value: Node, dim: Dim) -> Node:
    """The same units in other gate blocks."""
    if value.shape == (dim,):
        return value
    if value.op == "reblock" and value.args[0].shape == (dim,):
        return value.args[0]
    return node("reblock", (value,), (), (dim,), where_called())


def joined(vector: Node) -> Node:
    """A vector of several parts [2K] as one gate block, as an axis of a matrix per sample is."""
    if len(vector.shape) != 1 or is_matrix(vector):
        return vector
    return reblocked(vector, (axis_of(vector.shape[0]),))


def parted(vector: Node) -> Node:
    """A vector along an axis of a matrix per sample, in the parts that other vectors [2K] have."""
    (axis,) = vector.shape[0]
    assert not isinstance(axis, tuple), "a vector"
    return reblocked(vector, cut_dim(parts_of(axis)))


class Transposed(Tracer):
    """``S.T`` of a matrix per sample, of which a product reads S itself."""

    __slots__ = ()


def _size(dim: Dim) -> Tracer | int:
    """The number of units of a dim."""
    numbers = [gate_block for gate_block in dim if isinstance(gate_block, int)]
    if len(numbers) == len(dim):
        return sum(numbers)
    return Tracer(node("count", (), dim, where=where_called()))


def _is_tensor(value: Any) -> bool:
    of_torch = type(value).__module__.partition(".")[0] == "torch"
    return of_torch and hasattr(value, "requires_grad") and hasattr(value, "ndim")


_OPERATORS = {  # what numpy calls them -> ops
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "remainder": "remainder",
    "less": "lt",
    "less_equal": "le",
    "greater": "gt",
    "greater_equal": "ge",
    "equal": "eq",
    "not_equal": "ne",
}


def is_number(value: Any) -> bool:
    """Whether a value is a number of Python's or numpy's."""
    return _is_numpy_number(value) or isinstance(value, bool | int | float)


def _is_numpy_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "ndim")


def _is_numpy_number(value: Any) -> bool:
    """Whether a value is a real number of numpy's, or an array [] of one, not a word or date."""
    if type(value).__module__ != "numpy" or getattr(value, "ndim", 1) != 0:
        return False
    return value.dtype.kind in "biuf"


def lift(value: Any) -> Node:
    """The node of a tracer, or a constant's node."""
    if isinstance(value, AlongAxis):
        refuse(
            f"{value.name}({describe(value.node)}) is no value until it meets a matrix",
            f"{value.name}(v) * S, of a matrix S[K, V]; outer(k, v) is rows(k) * columns(v)",
        )
    if isinstance(value, Transposed):
        rows, columns = matrix_axes(value.node)
        return node("swapaxes", (value.node,), (), (((columns, rows),),), where_called())
    if isinstance(value, Tracer):
        return value.node
    if is_number(value):
        try:
            return node("const", (), (float(value),), where=where_called())
        except OverflowError:
            refuse("a whole number is too large for a floating-point number", "float('inf')")
    if _is_tensor(value) or _is_numpy_array(value):
        refuse(
            f"a {'torch tensor' if _is_tensor(value) else 'numpy array'} cannot take part in a "
            "cell's formula",
            'declare it: weights="s[H]" for a weight, constants="s[H]" for one that is never '
            'trained, input="x[I], m" for a per-step input, static="s[S]" for one per sequence'
            if value.ndim
            else 'write float(t) for a number, or declare it as a weight: weights="s"',
        )
    refuse(
        f"a {type(value).__name__} cannot take part in a cell's formula",
        "use numbers, the cell's arguments, and the functions of elman.ops",
    )


def pointwise(op: str, *operands: Any) -> Tracer:
    """Apply an elementwise op; a scalar meets a vector or matrix, otherwise shapes are equal.
    Raises ShapeError: shapes differ; TraceError: a matrix that depends on an input or a state."""
    if any(isinstance(value, AlongAxis) for value in operands):
        return _pointwise_along(op, operands)
    args = tuple(lift(value) for value in operands)
    if any(map(is_matrix, args)):
        args = tuple(map(per_sample, args))
    shaped = [arg for arg in args if arg.shape]
    for operand in shaped[1:]:
        check_cut(shaped[0].shape, operand.shape)
        if operand.shape != shaped[0].shape:
            raise mismatch(op, shaped[0], operand, elementwise_hint(shaped[0], operand))
    shape = shaped[0].shape if shaped else ()
    result = node(op, args, (), shape, where_called())
    if len(shape) == 2 and result.rate > Rate.WEIGHT:
        refuse(
            "a matrix may depend on weights alone",
            "multiply the vector instead: W @ (m * h), or m * (W @ h); beside a matrix of each"
            " sample: m * (W * S)",
        )
    return Tracer(result)


def _pointwise_along(op: str, operands: tuple[Any, ...]) -> Tracer:
    """An elementwise op of which some operands are vectors along one axis of a matrix."""
    operands = tuple(
        v if isinstance(v, AlongAxis) else Tracer(per_sample(lift(v))) for v in operands
    )
    plain = [value.node for value in operands if not isinstance(value, AlongAxis)]
    along = {value.axis: value.node for value in operands if isinstance(value, AlongAxis)}
    shape = next((value.shape for value in plain if value.shape), None)
    if shape is None and len(along) == 1:  # of one axis alone, it still is one
        (axis,) = along
        vectors = [Tracer(v.node) if isinstance(v, AlongAxis) else v for v in operands]
        return AlongAxis(pointwise(op, *vectors).node, axis)
    if shape is None:
        shape = matrix_shape(along[0].shape[0], along[1].shape[0])
    wide = [v.to_matrix(shape) if isinstance(v, AlongAxis) else v for v in operands]
    return pointwise(op, *wide)


def per_sample(value: Node) -> Node:
    """A matrix of weights [K, V] as a matrix per sample, the same for all; other values as they
    are."""
    if len(value.shape) < 2:
        return value
    return node("per_sample", (value,), (), matrix_shape(*value.shape), where_called())


def matrix_shape(rows: Dim, columns: Dim) -> Shape:
    """The shape of a matrix per sample, of the dims of two vectors."""
    return (((axis_of(rows), axis_of(columns)),),)


_PRODUCTS = 8  # powers that are products


def power_of(base: Any, power: Any) -> Tracer:
    """``base ** power``, elementwise; powers of ±1 … ±8 are products, ±0.5 are square roots, as in
    torch."""
    number = isinstance(power, int | float) and not isinstance(power, bool)
    if number and isinstance(base, Tracer):
        if power == 0.5:
            return pointwise("sqrt", base)
        if power in range(1, _PRODUCTS + 1):
            result = base
            for _ in range(int(power) - 1):
                result = result * base
            return result
        if power == -0.5:
            return 1.0 / pointwise("sqrt", base)
        if -power in range(1, _PRODUCTS + 1):
            return power_of(1.0 / base, -power)
    return pointwise("pow", base, power)


def matmul(left: Any, right: Any) -> Tracer:
    """Multiply a matrix, or its transpose, with a vector: [rows, cols] @ [cols] -> [rows]. The
    matrix is a weight, or has values for each sample."""
    sides = [v.node if isinstance(v, Transposed) else lift(v) for v in (left, right)]
    if any(map(is_matrix, sides)) and all(is_matrix(v) or len(v.shape) == 2 for v in sides):
        return _of_two(left, right)
    matrix, vector = sides
    if is_matrix(matrix):
        return _of_samples(matrix, vector, 0 if isinstance(left, Transposed) else 1)
    if is_matrix(vector):
        _refuse_product(matrix, vector)
    if len(matrix.shape) != 2 or len(vector.shape) != 1:
        raise mismatch("multiply", matrix, vector, product_hint(matrix, vector))
    check_cut(matrix.shape[1:], vector.shape)
    if matrix.shape[1:] != vector.shape:
        raise mismatch(
            "multiply",
            matrix,
            vector,
            f"W @ v needs v of shape {show_shape((matrix.shape[1],))}; W.T is the transpose",
        )
    return Tracer(node("matmul", (matrix, vector), (), (matrix.shape[0],), where_called()))


def _of_two(left: Any, right: Any) -> Tracer:
    """The product of two matrices of each sample, [K, N] and [N, V]; a weight is one that all
    samples share."""
    if isinstance(left, Transposed) and isinstance(right, Transposed):
        right = Tracer(lift(right))
    sides: list[Node] = []
    data: tuple[str, ...] = ()
    for side, value in (("L", left), ("R", right)):
        if isinstance(value, Transposed):
            data = (side,)
        sides.append(value.node if isinstance(value, Transposed) else per_sample(lift(value)))
    (rows, inner), (like, columns) = (
        matrix_axes(value)[:: -1 if side in data else 1]
        for side, value in zip("LR", sides, strict=True)
    )
    if inner != like:
        hint = "S @ W of S[K, N] takes W[N, V], W @ S takes W[V, K]; S.T is the transpose"
        raise mismatch("multiply", sides[0], sides[1], hint)
    return Tracer(node("bmm", sides, data, (((rows, columns),),), where_called()))


def _of_samples(matrix: Node, vector: Node, axis: int) -> Tracer:
    """A matrix per sample [K, V] times a vector [V] (axis 1), or its transpose times one [K]
    (axis 0): the sum over that axis of elementwise products."""
    if len(vector.shape) != 1 or is_matrix(vector):
        _refuse_product(matrix, vector)
    block = matrix_axes(matrix)
    if joined(vector).shape != ((block[axis],),):
        right = f"S @ v needs v of shape [{block[1]}], S.T @ k needs k of shape [{block[0]}]"
        raise mismatch("multiply", matrix, vector, right)
    scaled = pointwise("mul", Tracer(matrix), AlongAxis(vector, axis))
    return sum_of_axis(scaled.node, axis)


def sum_of_axis(matrix: Node, axis: int) -> Tracer:
    """The sum of a matrix per sample [K, V] over its rows (axis 0): [V], or over its columns
    (axis 1): [K]."""
    op, rest = ("fold", "sum")[axis], matrix_axes(matrix)[1 - axis]
    return Tracer(parted(node(op, (matrix,), (), ((rest,),), where_called())))


def _refuse_product(left: Node, right: Node) -> NoReturn:
    """Raise TraceError for a product of a matrix per sample with what is no vector."""
    if not left.shape or not right.shape:
        refuse("@ is a product with a matrix, and one side is a scalar", "m * S")
    if len(left.shape) == len(right.shape) == 1 and not is_matrix(left):
        refuse(
            f"cannot multiply {describe(left)} and {describe(right)}: a vector is on the left",
            "write S.T @ k; rows(k) * S scales the rows",
        )
    refuse(
        f"cannot multiply {describe(left)} and {describe(right)}",
        "S @ q, S.T @ k, S @ W and W @ S are what a step may do with a matrix S of each sample",
    )


def transpose(value: Any) -> Tracer:
    """The transpose of a weight matrix; that of a matrix per sample waits for its product."""
    matrix = lift(value)
    if is_matrix(matrix):
        return Transposed(matrix)
    if len(matrix.shape) != 2:
        message = f"only a matrix has a transpose, not {describe(matrix)}"
        product = "outer(k, v) is the matrix of all products, sum(k * v) the product of two vectors"
        refuse(message, product if matrix.shape else "W.T @ v, of a weight matrix W")
    return Tracer(node("transpose", (matrix,), (), matrix.shape[::-1], where_called()))


def vector_dim(value: Node, verb: str) -> Dim:
    """The dim of a vector; TraceError for scalars and matrices."""
    if is_matrix(value):
        refuse(
            f"cannot {verb} {describe(value)}: it is a matrix of each sample",
            "sum(S, axis=0), mean(S, axis=1), S @ q and S.T @ k are vectors",
        )
    if len(value.shape) != 1:
        refuse(
            f"cannot {verb} {describe(value)}: it is not a vector",
            f"{verb} takes a vector such as W @ x",
        )
    return value.shape[0]
