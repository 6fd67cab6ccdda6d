"""Canonical construction of nodes: shared subexpressions, sums flattened and grouped by rate.

Every value is one gate block wide, a scalar, or (weights alone) a matrix block of two gate blocks.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable

from elman.ir.graph import Node, Rate, by_bits, node
from elman.ir.ops import DISTINCT
from elman.ir.types import SCALAR, Shape

Term = tuple[float, Node]

_COMMUTES = ("mul", "minimum", "maximum", "eq", "ne")


def scales(coef: float) -> bool:
    """Whether a coefficient may be distributed over a sum: not zero, infinity or NaN."""
    return math.isfinite(coef) and coef != 0.0


def _is_broadcast(value: Node) -> bool:
    """Whether a ``lin`` only broadcasts a scalar to a vector."""
    return any(len(arg.shape) < len(value.shape) for arg in value.args) and len(value.args) == 1


def _is_exact(value: Node) -> bool:
    """Whether a value is another value scaled exactly: by a power of two or -1."""
    if value.op != "lin" or len(value.args) > 1 or value.bias:
        return False
    return abs(math.frexp(value.coefs[0])[0]) == 0.5


class Builder:
    """Hash-consing constructor of canonical nodes; ops of :data:`elman.ir.ops.DISTINCT` are never
    shared."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[Hashable, ...], Node] = {}
        self._number: dict[Node, int] = {}
        self._rounded: set[Node] = set()

    def keep(self, value: Node) -> None:
        """Keep a value's rounding as written: no sum flattens it, no product takes its factor."""
        self._rounded.add(value)

    def keep_all(self) -> None:
        """:meth:`keep` every sum built so far."""
        self._rounded.update(value for value in self._nodes.values() if value.op == "lin")

    def open(self, value: Node) -> bool:
        """Whether another sum may flatten this value."""
        if value.op != "lin" or _is_broadcast(value):
            return False
        return value not in self._rounded or _is_exact(value)

    def number(self, value: Node) -> int:
        """Sequence number of a value; fixes the order of commutative arguments."""
        return self._number.setdefault(value, len(self._number))

    def make(
        self,
        op: str,
        args: Iterable[Node] = (),
        data: tuple[Hashable, ...] = (),
        shape: Shape | None = None,
        where: str = "",
        rate: Rate | None = None,
    ) -> Node:
        """The shared node of an op; the default shape is that of the widest argument."""
        args = tuple(args)
        if shape is None:
            shape = max((arg.shape for arg in args), key=len, default=SCALAR)
        if op in _COMMUTES:
            args = tuple(sorted(args, key=self.number))
        key = (op, args, by_bits(data), shape)
        existing = self._nodes.get(key)
        if existing is None or op in DISTINCT:
            existing = self._nodes[key] = node(op, args, data, shape, where, rate)
            self.number(existing)
        return existing

    def const(self, value: float) -> Node:
        """A number."""
        return self.make("const", (), (float(value),))

    def lin(self, terms: Iterable[Term], bias: float = 0.0, shape: Shape | None = None) -> Node:
        """``bias + Σ coef · term``: open sums flattened, equal terms gathered, regrouped by rate.

        rewrite: W @ x + R @ h + b  ->  lin(R @ h, lin(W @ x, b)); value kept up to rounding.
        Terms of unlike sign are not cancelled, so that inf - inf stays NaN. A sum that is kept
        (:meth:`keep`) is one term, and so is one whose coefficient is infinite, NaN or zero
        (:func:`scales`). A zero that is added makes 0 of -0, and is a term; not beside products,
        whose zeros have the sign that their order gives them.
        """
        coefficients: dict[tuple[Node, Hashable], float] = {}
        numbers = [bias] if bias else []
        widest = shape or SCALAR
        pending: list[Term] = [(coef, term) for coef, term in reversed(list(terms))]
        while pending:
            coef, term = pending.pop()
            widest = max(widest, term.shape, key=len)
            if term.op == "const":
                numbers.append(coef * term.number)
            elif self.open(term) and scales(coef):
                numbers += [coef * term.bias] if term.bias else []
                inner = list(zip(term.coefs, term.args, strict=True))
                pending.extend((coef * inner_coef, arg) for inner_coef, arg in reversed(inner))
            else:
                key = (term, coef > 0 if scales(coef) else by_bits(coef))
                coefficients[key] = coefficients[key] + coef if key in coefficients else coef
        flat = [(coef, term) for (term, _), coef in coefficients.items()]
        total = sum(numbers[1:], numbers[0]) if numbers else 0.0
        adds_zero = bool(numbers) and by_bits(total) == by_bits(0.0)
        if adds_zero and flat and not any(term.op == "matmul" for _, term in flat):
            flat.append((1.0, self.const(0.0)))
        return self._grouped(flat, total or 0.0, widest) if flat else self.const(total)

    def _grouped(self, flat: list[Term], bias: float, shape: Shape) -> Node:
        """Nest the terms of lower rates: state + (input + (weight))."""
        top = max(term.rate for _, term in flat)
        upper = self._factored([(coef, term) for coef, term in flat if term.rate == top])
        lower = [(coef, term) for coef, term in flat if term.rate != top]
        if lower:
            width = max((term.shape for _, term in lower), key=len)
            upper.append((1.0, self._grouped(lower, bias, width)))
            bias = 0.0
        upper.sort(key=lambda item: (self.number(item[1]), item[0] < 0))
        if len(upper) == 1 and upper[0][0] == 1.0 and bias == 0.0 and upper[0][1].shape == shape:
            return upper[0][1]
        coefs = tuple(coef for coef, _ in upper)
        return self.make("lin", (term for _, term in upper), (coefs, bias), shape)

    def _factored(self, terms: list[Term]) -> list[Term]:
        """Group products with a common coefficient into one sum, which plans join along k.

        rewrite: c * (U @ a) + c * (V @ b) + d  ->  c * (U @ a + V @ b) + d
        """
        groups: dict[tuple[float, Shape], list[Node]] = {}
        for coef, term in terms:
            if term.op == "matmul" and coef != 1.0 and scales(coef):
                groups.setdefault((coef, term.shape), []).append(term)
        sums = {key: products for key, products in groups.items() if len(products) > 1}
        rest = [(c, v) for c, v in terms if v.op != "matmul" or (c, v.shape) not in sums]
        return rest + [
            (c, self._grouped([(1.0, v) for v in of], 0.0, shape))
            for (c, shape), of in sums.items()
        ]

    def scale(self, coef: float, value: Node) -> Node:
        """``coef · value``."""
        return self.lin([(coef, value)])

    def broadcast(self, scalar: Node, shape: Shape) -> Node:
        """A scalar as a vector of equal units (what a reduction's cotangent is)."""
        if scalar.shape == shape:
            return scalar
        return self.make("lin", (scalar,), ((1.0,), 0.0), shape)

    def mul(self, a: Node, b: Node) -> Node:
        """``a · b``; constant factors move into the sum around it."""
        coef = 1.0
        factors: list[Node] = []
        shape = max(a.shape, b.shape, key=len)
        for factor in (a, b):
            if factor.op == "const":
                coef *= factor.number
            elif self.open(factor) and len(factor.args) == 1 and not factor.bias:
                coef *= factor.coefs[0]
                factors.append(factor.args[0])
            else:
                factors.append(factor)
        if not factors:
            return self.const(coef)
        product = factors[0] if len(factors) == 1 else self.make("mul", factors)
        if product.shape != shape:
            product = self.broadcast(product, shape)
        return product if coef == 1.0 else self.lin([(coef, product)])

    def _scaled(self, value: Node, divisor: Node) -> bool:
        """Whether a division by a constant may become a multiplication by its reciprocal: if that
        is exact, or the value is a sum of products, whose rounding order is unspecified."""
        if abs(math.frexp(divisor.number)[0]) == 0.5:
            return 1e-30 < abs(divisor.number) < 1e30
        loose = value.op == "matmul" or (self.open(value) and not _is_exact(value))
        return loose and 1e-30 < abs(divisor.number) < 1e30

    def apply(self, op: str, args: tuple[Node, ...], where: str = "") -> Node:
        """The canonical form of a pointwise op."""
        if op == "add":
            return self.lin([(1.0, args[0]), (1.0, args[1])])
        if op == "sub":
            return self.lin([(1.0, args[0]), (-1.0, args[1])])
        if op == "neg":
            return self.lin([(-1.0, args[0])])
        if op == "mul":
            return self.mul(*args)
        if op == "div" and args[1].op == "const" and self._scaled(*args):
            return self.scale(1.0 / args[1].number, args[0])
        return self.make(op, args, (), None, where)
