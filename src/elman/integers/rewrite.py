"""Rewrite a formula so that each of its values is a whole number times a power of two.

    tanh(W @ x + b)  ->  q(hinges(q(q(W @ q8(x)) + q(b)))), q(v) = surrogate(round(v / s) · s, v, 1)

Values are rounded and clipped where a sum or a product would no longer be exact in float32, where a
matrix multiplies them, and where they leave the step. Matrices are rounded before a call. Gradients
pass roundings and clips as if there were none (straight through; Bengio, Léonard & Courville 2013,
arXiv:1308.3432v1); a function's derivative is its own, at the rounded argument or result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from elman.errors import InputError
from elman.integers.formats import EXACT, Format, aligned, balanced, number, result
from elman.integers.hinges import FUNCTIONS, POSITIVE, changing, hinges
from elman.ir.graph import Graph, Node, Rate, node
from elman.ir.ops import COMPARISONS
from elman.ir.types import is_matrix, shape_size

Range = tuple[float, float]
_ARGUMENT_BITS = 12  # of a function's argument
_RESULT_BITS = 9  # of a function's result: as many as leave 16 for a factor
_CONSTANT_BITS = 12
_VALUE_BITS = 16
_LARGEST, _SMALLEST = 2.0**40, 2.0**-24  # what a value reaches that is not rounded to 0
_FURTHER = 4  # times as far as it has room a value may reach before it is clipped
_ROOM = 2.0  # how much further than it was seen a value may reach


@dataclass(frozen=True)
class Bits:
    """Bits of whole numbers, the sign included.

    Attributes:
        weights: of matrices, with a power of two for each row.
        operands: of vectors that matrices multiply.
        states: of what one step hands to the next.

    Example:
        >>> net = elman.GRU(8, 16, quantize=elman.Bits(weights=4, operands=8, states=12))
        >>> net.quantize.states
        12
    """

    weights: int = 8
    operands: int = 8
    states: int = 16


class Value(NamedTuple):
    """A value of the new formula, and its format; None: any number."""

    node: Node
    format: Format | None


def values_of(graph: Graph) -> list[Node]:
    """The values whose ranges a rewrite reads: leaves, then operations, arguments first."""
    leaves = {*graph.leaves}
    return [*graph.leaves, *(value for value in graph.walk() if value not in leaves)]


def matrices(graph: Graph) -> dict[str, bool]:
    """The weight matrices that vectors are multiplied by, and whether each keeps its rows there: a
    transposed one has one power of two for all of it."""
    found: dict[str, bool] = {}
    for value in graph.walk():
        chain, by_row = [value.args[0]] if value.op == "matmul" else [], True
        while chain:
            matrix = chain.pop()
            by_row = by_row and matrix.op != "transpose"
            chain += matrix.args
            if matrix.op == "weight":
                found[matrix.name] = by_row and found.get(matrix.name, True)
    return found


def rewrite(graph: Graph, ranges: Sequence[Range], bits: Bits, sizes: Mapping[str, int]) -> Graph:
    """The formula with all its values on grids.

    Args:
        graph: as written.
        ranges: the least and the largest number that each of :func:`values_of` was seen to be.
        bits: of the whole numbers.
        sizes: of the named dims.

    Raises:
        InputError: an operation cannot be computed so.
    """
    return _Rewrite(graph, dict(zip(values_of(graph), ranges, strict=True)), bits, sizes).run()


def leaf_formats(graph: Graph, ranges: Sequence[Range], bits: Bits) -> dict[str, Format]:
    """The grids to which inputs and states are rounded, by name; arguments as of
    :func:`rewrite`."""
    whole = _Rewrite(graph, dict(zip(values_of(graph), ranges, strict=True)), bits, {})
    return {leaf.name: whole.leaf_grid(leaf) for leaf in (*graph.inputs, *graph.states)}


def _apply(op: str, *args: Node) -> Node:
    shape = max((arg.shape for arg in args), key=len)
    return node(op, args, (), shape, next((arg.where for arg in args if arg.where), ""))


def _const(value: float) -> Node:
    return node("const", (), (value,))


def _with(old: Node, args: Sequence[Value]) -> Node:
    return node(old.op, [arg.node for arg in args], old.data, old.shape, old.where)


def _refused(old: Node, reason: str) -> InputError:
    return InputError(f"in integers: {old.op} {reason}", at=old.where or None)


class _Rewrite:
    def __init__(
        self, graph: Graph, ranges: Mapping[Node, Range], bits: Bits, sizes: Mapping[str, int]
    ) -> None:
        self.graph, self.ranges, self.bits, self.sizes = graph, dict(ranges), bits, sizes
        for before, after in zip(graph.states, graph.next_states, strict=True):
            (a, b), (c, d) = ranges[before], ranges[after]
            self.ranges[before] = min(a, c), max(b, d)
        self.new: dict[Node, Value] = {}

    def run(self) -> Graph:
        graph = self.graph
        for leaf in graph.leaves:
            if len(leaf.shape) == 2 or is_matrix(leaf):
                self.new[leaf] = Value(leaf, None)
            else:
                self.new[leaf] = self._rounded(Value(leaf, None), self.leaf_grid(leaf))
        for old in graph.walk():
            if old in self.new:
                continue
            if old.rate == Rate.WEIGHT and old.op != "const" and len(old.shape) < 2:
                # computed once per call, of the weights as they are
                self.new[old] = self._rounded(Value(old, None), self._grid(old, _VALUE_BITS))
            else:
                self.new[old] = self._operation(old)
        states = [  # on the grid that the next step reads them from
            self._rounded(self.new[root], self.leaf_grid(leaf)).node
            for leaf, root in zip(graph.states, graph.next_states, strict=True)
        ]
        kept = dict(zip(graph.next_states[::-1], states[::-1], strict=True))
        outputs = [
            kept.get(root) or self._rounded(self.new[root], self._grid(root, _VALUE_BITS)).node
            for root in graph.outputs
        ]
        return Graph(graph.inputs, graph.states, graph.weights, tuple(states), tuple(outputs))

    def leaf_grid(self, leaf: Node) -> Format:
        """The grid of an input, a state or a weight that is no matrix."""
        return self._grid(leaf, self.bits.states if leaf.op == "state" else _VALUE_BITS)

    # ---- grids and roundings

    def _grid(self, old: Node, bits: int, room: float = _ROOM) -> Format:
        """The grid of so many bits that has room for a value of the formula as written."""
        reach = max(*map(abs, self.ranges[old]))
        if reach > _LARGEST:
            raise _refused(old, f"reaches {reach:.3g}: scale the inputs or the weights")
        reach = max(reach, _SMALLEST) * room if reach else 1.0
        return balanced(math.ceil(math.log2(reach)) - bits + 1, bits)

    def _rounded(self, value: Value, to: Format) -> Value:
        """A value on a grid, clipped to its ends; as it is, if it lies there."""
        v, of = value
        fits = is_there = False
        if of is not None:
            seen = of.rounded(to.exponent)
            fits = to.low <= seen.low and seen.high <= to.high
            is_there = of.exponent >= to.exponent
            low, high = max(to.low, seen.low), min(to.high, seen.high)
            to = Format(to.exponent, min(low, to.high), max(high, to.low))
        if fits and is_there:
            return value
        clipped = v
        if not fits:
            low, high = (math.ldexp(n, to.exponent) for n in (to.low, to.high))
            clipped = _apply("minimum", _apply("maximum", v, _const(low)), _const(high))
        on_grid = clipped if is_there else _on_grid(clipped, to.exponent)
        return Value(_apply("surrogate", on_grid, v, _const(1.0)), to)

    def _clipped_to_range(self, old: Node, value: Value) -> Value:
        """A value clipped to where it has room, if its operands could take it much further: a
        product would keep few of the bits that it has there."""
        of, reach = value.format, max(*map(abs, self.ranges[old]))
        if of is None or reach > _LARGEST:
            return value
        most = math.ceil(math.ldexp(max(reach, _SMALLEST) * _ROOM if reach else 1.0, -of.exponent))
        if of.most <= _FURTHER * most:
            return value
        return self._rounded(value, Format(of.exponent, -most, most))

    def _coarser(self, value: Value, exponent: int) -> Value:
        """A value rounded to multiples of 2^exponent."""
        assert value.format is not None
        if value.format.exponent >= exponent:
            return value
        return self._rounded(value, value.format.rounded(exponent))

    def _narrower(self, value: Value, most: int) -> Value:
        """A value whose whole numbers are rounded to at most so large ones."""
        of = value.format
        assert of is not None
        exponent = of.exponent
        while of.rounded(exponent).most > most:
            exponent += 1
        return self._coarser(value, exponent)

    # ---- operations

    def _operation(self, old: Node) -> Value:
        args = _finite([self.new[arg] for arg in old.args])
        if len(old.shape) == 2 and old.op in ("split", "transpose", "concat"):
            return Value(_with(old, args), None)  # of weights
        rule = _RULES.get(old.op)
        if rule is not None and old.op in _LOSE_BITS:
            args = [*map(self._clipped_to_range, old.args, args)]
        if rule is not None:
            return rule(self, old, args)
        if old.op in FUNCTIONS:
            return self._function(old, old.op, old.args[0])
        return self._exact(old, args)

    def _exact(self, old: Node, args: Sequence[Value]) -> Value:
        """An operation on whole numbers; of a sum that is too large, the parts lose bits."""
        formats = self._formats(old, args)
        of = result(old, formats)
        if of is None:
            raise _refused(old, "has no form")
        if not of.is_exact:
            least = of.exponent
            while of.rounded(least).most > EXACT // 2:
                least += 1
            args = [self._coarser(arg, least) for arg in args]
            of = result(old, self._formats(old, args))
            assert of is not None
        return Value(_with(old, args), of)

    def _formats(self, old: Node, args: Sequence[Value]) -> list[Format]:
        formats = [of for _, of in args if of is not None]
        if len(formats) < len(args):
            raise _refused(old, "reads a matrix, random numbers or infinity")
        return formats

    def _constant(self, old: Node, args: Sequence[Value] = ()) -> Value:
        value = old.number
        of = number(value)
        if not math.isfinite(value):
            return Value(_const(value), None)
        if of is None or of.most >= 1 << _CONSTANT_BITS:
            exponent = math.ceil(math.log2(abs(value))) - _CONSTANT_BITS
            value = math.ldexp(round(math.ldexp(value, -exponent)), exponent)
            of = number(value)
        return Value(_const(value), of)

    def _product(self, old: Node, args: Sequence[Value]) -> Value:
        matrix, vector = old.args
        if self.new[matrix].format is not None or matrix.rate != Rate.WEIGHT:
            raise _refused(old, "multiplies a matrix that is no weight")
        operand = self._rounded(args[1], self._grid(vector, self.bits.operands, 1.0))
        value = Value(_with(old, [args[0], operand]), None)
        return self._rounded(value, self._grid(old, _VALUE_BITS))

    def _times(self, old: Node, args: Sequence[Value]) -> Value:
        """A product of two values; the larger whole numbers lose bits."""
        f, g = self._formats(old, args)
        if f.most * g.most > EXACT:
            most = 1 << 12
            smaller = max(1, min(f.most, g.most, most))
            args = [
                self._narrower(arg, smaller if of.most <= smaller else EXACT // smaller)
                for arg, of in zip(args, (f, g), strict=True)
            ]
            if all(of.most > most for of in self._formats(old, args)):
                args = [self._narrower(arg, most) for arg in args]
        return Value(_with(old, args), result(old, self._formats(old, args)))

    def _quotient(self, old: Node, args: Sequence[Value]) -> Value:
        divisor = old.args[1]
        if divisor.op == "const" and divisor.number:
            inverse = self._constant(_const(1 / divisor.number))
        else:
            inverse = self._function(old, "reciprocal", divisor)
        return self._times(node("mul", (), (), old.shape, old.where), [args[0], inverse])

    def _power(self, old: Node, args: Sequence[Value]) -> Value:
        exponent = old.args[1]
        if exponent.op != "const" or exponent.number != 2.0:
            raise _refused(old, "has another exponent than 2")
        return self._times(node("mul", (), (), old.shape, old.where), [args[0], args[0]])

    # ---- sums over units

    def _sum(self, old: Node, args: Sequence[Value]) -> Value:
        """A sum that is exact in any order."""
        formats = self._formats(old, args)
        count = self._count(old)
        args = [self._narrower(arg, max(1, EXACT // count)) for arg in args]
        formats = aligned(self._formats(old, args))
        low, high = min(0, *[f.low for f in formats]), max(0, *[f.high for f in formats])
        of = Format(formats[0].exponent, low * count, high * count)
        if not of.is_exact:
            raise _refused(old, f"is of {count} values of unlike size")
        return Value(_with(old, args), of)

    def _count(self, old: Node) -> int:
        """Over how many units a reduction runs."""
        units = sum(math.prod(shape_size(arg.shape, self.sizes)) for arg in old.args)
        return units // math.prod(shape_size(old.shape, self.sizes))

    def _mean(self, old: Node, args: Sequence[Value]) -> Value:
        total = self._sum(node("sum", old.args, old.data, old.shape, old.where), args)
        share = self._constant(_const(1 / self._count(old)))
        return self._times(node("mul", (), (), old.shape, old.where), [total, share])

    def _variance(self, old: Node, args: Sequence[Value]) -> Value:
        mean = self._mean(old, args)
        squares: list[Value] = []
        for arg, value in zip(old.args, args, strict=True):
            wide = mean
            if old.shape:
                wide = Value(node("spread", (mean.node,), (), arg.shape, old.where), mean.format)
            difference = self._exact(node("sub", (), (), arg.shape, old.where), [value, wide])
            product = node("mul", (), (), arg.shape, old.where)
            squares.append(self._times(product, [difference, difference]))
        return self._mean(old, squares)

    def _comparison(self, old: Node, args: Sequence[Value]) -> Value:
        return Value(_with(old, args), Format(0, 0, 1))  # exact of any two numbers

    def _function(self, old: Node, name: str, arg: Node) -> Value:
        v = self._rounded(self.new[arg], self._domain(old, name, arg))
        domain = v.format
        assert domain is not None
        fitted = hinges(name, domain, _RESULT_BITS)
        total = _const(fitted.bias)
        if not fitted.terms:  # a constant for each unit
            total = _apply("add", total, _apply("mul", _const(0.0), v.node))
        for slope, knot in fitted.terms:
            hinge = _apply("maximum", v.node, _const(knot))
            total = _apply("add", total, _apply("mul", _const(slope), hinge))
        y = _on_grid(total, fitted.format.exponent, fitted.format)
        if name in _SLOPES:
            return Value(_apply("surrogate", y, v.node, _SLOPES[name](y)), fitted.format)
        exact = _apply("div", _const(1.0), v.node) if name == "reciprocal" else _apply(name, v.node)
        if name == "sqrt":  # whose derivative at 0, where a rounded argument often is, is infinite
            unit = _const(math.ldexp(1.0, domain.exponent))
            exact = _apply("sqrt", _apply("maximum", v.node, unit))
        return Value(_apply("surrogate", y, exact, _const(1.0)), fitted.format)

    def _domain(self, old: Node, name: str, arg: Node) -> Format:
        """Grid and range of a function's argument."""
        low, high = self.ranges[arg]
        if max(abs(low), abs(high)) > _LARGEST:
            raise _refused(old, f"would be taken of {low:.3g} to {high:.3g}")
        spread = (high - low) * (_ROOM - 1) / 2
        least, most = low - spread, high + spread
        if name in ("exp", "expm1"):  # twice as far would be far more in the result
            most = min(most, high + 1.0)
        if name in POSITIVE:
            if low < 0 or (low == 0 and name != "sqrt"):
                raise _refused(old, f"would be taken of {low:.3g}")
            least = max(least, low / _ROOM)
        least, most = changing(name, least, most, 2.0**-_RESULT_BITS)
        reach = max(abs(least), abs(most), _SMALLEST)
        grid = balanced(math.ceil(math.log2(reach)) - _ARGUMENT_BITS + 1, _ARGUMENT_BITS)
        first = math.ceil(math.ldexp(least, -grid.exponent))
        last = math.floor(math.ldexp(most, -grid.exponent))
        if name in POSITIVE and name != "sqrt":
            first = max(first, 1)
        return Format(grid.exponent, first, max(first + 1, last))


def _finite(args: list[Value]) -> list[Value]:
    """The arguments of an operation; for infinity a power of two that the others do not reach."""
    bound = max([of.bound for _, of in args if of is not None], default=1.0)
    beyond = 2.0 ** (math.ceil(math.log2(max(bound, 1.0))) + 1)
    signs = {math.inf: beyond, -math.inf: -beyond}
    finite = [signs.get(v.number) if v.op == "const" else None for v, _ in args]
    pairs = zip(args, finite, strict=True)
    return [arg if n is None else Value(_const(n), number(n)) for arg, n in pairs]


def _on_grid(v: Node, exponent: int, of: Format | None = None) -> Node:
    """v rounded to multiples of 2^exponent, half to even. A format that it is known to have is
    spelled out, as no bound of its parts says it."""
    whole = _apply("round", _apply("mul", v, _const(math.ldexp(1.0, -exponent))))
    if of is not None:
        whole = _apply("minimum", _apply("maximum", whole, _const(of.low)), _const(of.high))
    return _apply("mul", whole, _const(math.ldexp(1.0, exponent)))


_SLOPES: dict[str, Callable[[Node], Node]] = {  # derivatives of functions, by their results
    "tanh": lambda y: _apply("sub", _const(1.0), _apply("mul", y, y)),
    "sigmoid": lambda y: _apply("mul", y, _apply("sub", _const(1.0), y)),
    "exp": lambda y: y,
}
_Rule = Callable[[_Rewrite, Node, Sequence[Value]], Value]
_LOSE_BITS = ("mul", "div", "pow", "sum", "mean", "var")  # where numbers are large
_RULES: dict[str, _Rule] = {
    "const": _Rewrite._constant,
    "matmul": _Rewrite._product,
    "mul": _Rewrite._times,
    "div": _Rewrite._quotient,
    "pow": _Rewrite._power,
    "sum": _Rewrite._sum,
    "mean": _Rewrite._mean,
    "var": _Rewrite._variance,
    **dict.fromkeys(COMPARISONS, _Rewrite._comparison),
}
