"""Nodes and graphs: the mathematics of one step, shared, ordered, immutable.

A node is identified by itself (two equal formulas are two nodes until ``passes/simplify`` or the
canonical form makes them one). Arguments go by position, metadata in ``data``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, cast

from elman.ir.ops import OPS
from elman.ir.types import SCALAR, Shape, is_matrix, show_shape


class Rate(IntEnum):
    """How often a value changes: the highest rate among its arguments."""

    WEIGHT = 0  # once per call
    INPUT = 1  # once per row of T·B, no state needed
    STATE = 2  # once per step
    OUTPUT = 3  # backward: from primal values and the output's cotangent alone
    CARRY = 4  # backward: from a cotangent that step t + 1 hands to step t


LEAF_RATE = {
    "weight": Rate.WEIGHT,
    "const": Rate.WEIGHT,
    "input": Rate.INPUT,
    "draw": Rate.INPUT,
    "state": Rate.STATE,
}


@dataclass(frozen=True, eq=False)
class Node:
    """One value: ``op`` applied to ``args``; leaves carry their name in ``data[0]``.

    ``where`` is the line of the cell (``file:line: text``) the value was written at, if any.
    """

    op: str
    args: tuple[Node, ...] = ()
    data: tuple[Any, ...] = ()
    shape: Shape = SCALAR
    where: str = ""
    rate: Rate = field(default=Rate.WEIGHT)

    @property
    def name(self) -> str:
        """A leaf's own name; for other nodes the op."""
        return str(self.data[0]) if OPS[self.op].kind == "leaf" and self.data else self.op

    @property
    def number(self) -> float:
        """The value of a ``const``."""
        return float(self.data[0])

    @property
    def coefs(self) -> tuple[float, ...]:
        """The coefficients of a ``lin``, one per argument."""
        return self.data[0]

    @property
    def bias(self) -> float:
        """The constant of a ``lin``."""
        return self.data[1]

    @property
    def transposed(self) -> bool:
        """Whether a ``matmul`` multiplies with the transpose of its matrix."""
        return "T" in self.data

    @property
    def over_units(self) -> bool:
        """Whether this vector reads units of its argument other than its own, and is not a
        product."""
        return bool(self.shape) and OPS[self.op].kind in ("reduce", "spread", "scan")

    @property
    def backward_in_units(self) -> bool:
        """Whether a ``cumsum`` runs from the last unit to the first."""
        return "R" in self.data

    @property
    def row(self) -> int:
        """A weight block's row of blocks (a vector's gate block; 0 for a scalar)."""
        return self.data[1]

    @property
    def column(self) -> int:
        """A weight block's column of blocks; 0 for a vector."""
        return self.data[2] if len(self.data) > 2 else 0

    def __repr__(self) -> str:
        inside = ", ".join(arg.name for arg in self.args)
        return f"{self.name}({inside}): {show_shape(self.shape)}" if self.args else self.name


def node(
    op: str,
    args: Iterable[Node] = (),
    data: tuple[Any, ...] = (),
    shape: Shape = SCALAR,
    where: str = "",
    rate: Rate | None = None,
) -> Node:
    """Build a node, unshared; its rate is the highest of its arguments' unless given (leaves: by
    kind). A matrix per sample is of no call's memory, even one of weights alone."""
    args = tuple(args)
    if rate is None:
        rate = max((arg.rate for arg in args), default=LEAF_RATE.get(op, Rate.WEIGHT))
        if len(shape) == 1 and isinstance(shape[0][0], tuple):
            rate = max(rate, Rate.INPUT)
    return Node(op, args, data, shape, where, rate)


def by_bits(data: Hashable) -> Hashable:
    """A hash key that compares floats by their bits: 0.0 and -0.0 differ, NaN equals NaN."""
    if isinstance(data, tuple):
        return tuple(map(by_bits, cast("tuple[Hashable, ...]", data)))
    return data.hex() if isinstance(data, float) else data


def walk(roots: Iterable[Node], stop: Callable[[Node], bool] | None = None) -> Iterator[Node]:
    """Yield every node below ``roots`` once, arguments first, in a fixed order.

    ``stop(node)`` true: the node is yielded, but its arguments are not entered.
    """
    visited: set[Node] = set()
    for root in roots:
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            current, ready = stack.pop()
            if ready:
                yield current
                continue
            if current in visited:
                continue
            visited.add(current)
            stack.append((current, True))
            if stop is None or not stop(current):
                stack.extend((arg, False) for arg in reversed(current.args) if arg not in visited)


@dataclass(frozen=True, eq=False)
class Graph:
    """One step: leaves in declared order, next states in declared order, and the outputs.

    ``outputs`` are returned at each step: the first next state unless the cell names others.
    Engines concatenate them into one array."""

    inputs: tuple[Node, ...]
    states: tuple[Node, ...]
    weights: tuple[Node, ...]
    next_states: tuple[Node, ...]
    outputs: tuple[Node, ...]

    @property
    def output(self) -> Node:
        """The first of the outputs, which a layer above reads."""
        return self.outputs[0]

    @property
    def output_shape(self) -> Shape:
        """Shape of the concatenated outputs; a scalar among several counts as one unit."""
        if len(self.outputs) == 1:
            return self.outputs[0].shape
        dims = [value.shape[0] if value.shape else (1,) for value in self.outputs]
        return (tuple(gate_block for dim in dims for gate_block in dim),)

    @property
    def leaves(self) -> tuple[Node, ...]:
        """All leaves in declared order: inputs, states, weights."""
        return (*self.inputs, *self.states, *self.weights)

    @property
    def roots(self) -> tuple[Node, ...]:
        """Everything a step has to produce."""
        return (*self.next_states, *self.outputs)

    @property
    def clips(self) -> bool:
        """Whether the backward clips gradients, and so is not linear."""
        return any(value.op == "clip_gradient" for value in self.walk())

    @property
    def has_matrices(self) -> bool:
        """Whether a value is a matrix per sample."""
        return any(is_matrix(value) for value in (*self.leaves, *self.walk()))

    def walk(self) -> Iterator[Node]:
        """Every node once, arguments first."""
        return walk(self.roots)

    def rebuilt(self, rewrite: Callable[[Node, tuple[Node, ...]], Node]) -> Graph:
        """A new graph in which ``rewrite(old, new_args)`` replaces each node that is no leaf."""
        new: dict[Node, Node] = {leaf: leaf for leaf in self.leaves}
        for old in self.walk():
            if old not in new:
                new[old] = rewrite(old, tuple(new[arg] for arg in old.args))
        return Graph(
            self.inputs,
            self.states,
            self.weights,
            tuple(new[root] for root in self.next_states),
            tuple(new[root] for root in self.outputs),
        )


def with_args(old: Node, args: tuple[Node, ...]) -> Node:
    """The same op on other arguments; the same node if they are unchanged."""
    if args == old.args:
        return old
    return node(old.op, args, old.data, old.shape, old.where)


def readers(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    """For each node, those of ``nodes`` that take it as an argument, in order, without
    repetition."""
    by_argument: dict[Node, list[Node]] = {}
    for reader in nodes:
        for arg in dict.fromkeys(reader.args):
            by_argument.setdefault(arg, []).append(reader)
    return by_argument
