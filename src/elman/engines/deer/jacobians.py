"""Jacobians of all steps from the backward step; row by row only after ops that mix units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from elman.engines.deer.partial_evaluation import Mixing, ScaledRows
from elman.ir.graph import Node, walk

Term = tuple[float, Node]


@dataclass
class JacobianRows:
    """Rows of one group's Jacobian, [T, B, n, w] for a value of w units.

    Until units mix, a row is one number; a product makes it that number times the product's row. So
    a Jacobian of n rows costs T·B·n² for the first product on each path back to the states, and
    T·B·n³ only for further products after it. (One seed per row, through every op, took 85 % of a
    training step at n = 32.)

    Attributes:
        problem: evaluates nodes and has their sizes.
        mixing: the backward step.
        values: values of the step, and of the unit-by-unit part of the backward, with cotangents 1
            for one state each: [states, T, B, w].
        places: for each cotangent, the index of its state in the group, and its rows.
        count: T.
        size: n.
    """

    problem: Any
    mixing: Mixing
    values: dict[Node, Tensor]
    places: Mapping[Node, tuple[int, slice]]
    count: int
    size: int
    _lifted: dict[Node, Tensor] = field(default_factory=dict)

    def write(self, block: Tensor, root: Node | None) -> None:
        """Write the rows of a value, one of :attr:`Mixing.roots`, into [T, B, n, w]."""
        terms = list(_terms(1.0, root, self.mixing)) if root is not None else []
        written: set[int] = set()
        scaled = [(coef, self.mixing.scaled[term]) for coef, term in terms if self._is_leaf(term)]
        for coef, rows_of in scaled:
            if rows_of.product is not None:
                self._multiply(block, coef, rows_of, written)
        for place, span in self.places.values():
            if place not in written:
                block[:, :, span] = 0
        for coef, term in terms:
            if not self._is_leaf(term):
                block.add_(self._evaluated(term), alpha=coef)
        for coef, rows_of in scaled:
            if rows_of.product is None:
                for value, _, span in self._diagonals(coef, rows_of):
                    if rows_of.vector.shape:
                        block[:, :, span].diagonal(dim1=-2, dim2=-1).add_(value)
                    else:  # a scalar's row is the same for every unit of the root
                        block[:, :, span].add_(value.unsqueeze(-1))

    def _is_leaf(self, term: Node) -> bool:
        return term in self.mixing.scaled

    def _multiply(self, block: Tensor, coef: float, scaled: ScaledRows, written: set[int]) -> None:
        """Diagonals times a matrix of weights, added to the block's rows of their states."""
        assert scaled.product is not None
        (matrix,) = self.problem.evaluate((scaled.product.args[0],), self.values)
        right = matrix if scaled.product.transposed else matrix.transpose(-1, -2)
        for value, place, rows in self._diagonals(coef, scaled):
            part = block[:, :, rows]
            if place in written:
                part.addcmul_(value.unsqueeze(-1), right)
            else:
                torch.mul(value.unsqueeze(-1), right, out=part)
                written.add(place)

    def _diagonals(self, coef: float, scaled: ScaledRows) -> Iterable[tuple[Tensor, int, slice]]:
        """The diagonal [T, B, w] by each state that the vector depends on, the state, its rows."""
        (diagonal,) = self.problem.evaluate((scaled.vector,), self.values)
        states = 1 + max(place for place, _ in self.places.values())
        wide = self.problem.broadcast(diagonal, scaled.vector, states, self.count)
        for leaf, (place, rows) in self.places.items():
            if leaf in scaled.reached:
                yield (wide[place] if coef == 1 else coef * wide[place]), place, rows

    def _evaluated(self, value: Node) -> Tensor:
        """Rows [T, B, n, w] of a value after the first product."""
        lifted, mixed = self._lifted, self.mixing.nodes
        for node in walk((value,), stop=lambda node: node in lifted or node not in mixed):
            if node in lifted:
                continue
            if self._is_leaf(node):
                lifted[node] = self._full_rows(node)
            elif node not in mixed:
                (values,) = self.problem.evaluate((node,), self.values)
                lifted[node] = _lift(values, node)
        (rows,) = self.problem.evaluate((value,), lifted)
        return rows if value.shape else rows.unsqueeze(-1)

    def _full_rows(self, leaf: Node) -> Tensor:
        problem = self.problem
        like = next(iter(self.values.values()))
        lead = (self.count, problem.batch, self.size)
        block = like.new_empty(*lead, problem.width(leaf))
        self.write(block, leaf)
        return problem.bare(block, leaf)


def _terms(coef: float, value: Node, mixing: Mixing) -> Iterable[Term]:
    """The terms of a sum, nested sums flattened."""
    if value.op == "lin" and not value.bias and all(arg in mixing.nodes for arg in value.args):
        for factor, arg in zip(value.coefs, value.args, strict=True):
            yield from _terms(coef * factor, arg, mixing)
    else:
        yield coef, value


def _lift(value: Tensor, node: Node) -> Tensor:
    """A value of a step with an axis for the rows of a Jacobian."""
    if len(node.shape) == 2 or not value.dim():
        return value
    return value.unsqueeze(-2) if node.shape else value.unsqueeze(-1)
