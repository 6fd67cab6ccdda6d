"""Heads: the same formula with block-diagonal recurrent weights, decided by rate, not by name."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import NamedTuple

from elman.errors import ShapeError
from elman.frontend.cuts import Cuts, cut
from elman.frontend.signature import Declared
from elman.ir.graph import Graph, Node, Rate, walk
from elman.ir.types import Dim, GateBlock, Shape


class Division(NamedTuple):
    """What heads change in a signature.

    Attributes:
        blocks: names of the weights that become block-diagonal.
        dims: the dims that are divided among the heads: names and numbers.
    """

    blocks: frozenset[str] = frozenset()
    dims: frozenset[GateBlock] = frozenset()


class Tracing(NamedTuple):
    """What a formula is traced for.

    Attributes:
        cuts: how numbers among the dims are cut.
        heads: how many there are.
        how: what they divide.
    """

    cuts: Cuts
    heads: int = 1
    how: Division = Division()


_PLAIN = Tracing(MappingProxyType({}))
_tracing: ContextVar[Tracing] = ContextVar("elman_tracing", default=_PLAIN)


@contextmanager
def tracing(what: Tracing) -> Generator[None]:
    """Formulas traced inside multiply head by head, and see numbers cut."""
    token = _tracing.set(what)
    try:
        yield
    finally:
        _tracing.reset(token)


def heads_of(matrix: Node) -> int:
    """The number of heads if a matrix is made of block-diagonal weights, else 1."""
    what = _tracing.get()
    blocks = what.heads > 1 and any(leaf.name in what.how.blocks for leaf in _weights(matrix))
    return what.heads if blocks else 1


def traced_dim(dim: Dim) -> Dim:
    """A dim as a formula writes it, as it is while the formula is traced."""
    what = _tracing.get()
    dim = cut(dim, what.cuts)
    return dim if what.heads == 1 else _divided_dim(dim, what.heads, what.how)


def cut_dim(dim: Dim) -> Dim:
    """A dim of numbers that heads do not divide, as it is while a formula is traced."""
    return cut(dim, _tracing.get().cuts)


def division(graph: Graph) -> Division:
    """Which weights of a formula multiply a value that depends on the state, and what they divide.

    Weights that are combined in one matrix are divided together; a weight that is divided is so
    wherever it stands: what it multiplies, an input too, is divided as well.
    """
    matrices: list[set[Node]] = []
    blocks: set[Node] = set()
    for value in graph.walk():
        if value.op == "matmul":
            matrices.append(_weights(value.args[0]))
            if value.args[1].rate >= Rate.STATE:
                blocks |= matrices[-1]
    while any(leaves & blocks and not leaves <= blocks for leaves in matrices):
        blocks = blocks.union(*(leaves for leaves in matrices if leaves & blocks))
    rows = [leaf.shape[0] for leaf in (*graph.states, *blocks) if leaf.shape]
    columns = [leaf.shape[1] for leaf in blocks]
    gate_blocks = frozenset(gate_block for dim in (*rows, *columns) for gate_block in dim)
    return Division(frozenset(leaf.name for leaf in blocks), gate_blocks)


def _weights(matrix: Node) -> set[Node]:
    return {leaf for leaf in walk((matrix,)) if leaf.op == "weight" and len(leaf.shape) == 2}


def _of_head(gate_block: GateBlock, heads: int) -> GateBlock:
    """One head's part of a gate block; a name stands for the size of that part from then on."""
    return gate_block if isinstance(gate_block, str) else gate_block // heads


def check_divides(name: str, heads: int, how: Division) -> None:
    """Raise ShapeError if a number among the dims to be divided cannot be."""
    for gate_block in how.dims:
        if isinstance(gate_block, int) and gate_block % heads:
            raise ShapeError(f"{name}: a dim of {gate_block} cannot be divided among {heads} heads")


def _divided_dim(dim: Dim, heads: int, how: Division) -> Dim:
    gate_blocks: list[GateBlock] = []
    for gate_block in dim:
        gate_blocks.extend(
            [_of_head(gate_block, heads)] * heads if gate_block in how.dims else [gate_block]
        )
    return tuple(gate_blocks)


def divided(entry: Declared, heads: int, how: Division) -> Declared:
    """A declared argument as it is with heads: dims repeated per head, not a block's columns."""
    shape: Shape = tuple(
        tuple(_of_head(gate_block, heads) for gate_block in dim)
        if place and entry.name in how.blocks
        else _divided_dim(dim, heads, how)
        for place, dim in enumerate(entry.shape)
    )
    return Declared(entry.name, shape)


def sizes_per_head(dims: dict[str, int], heads: int, how: Division) -> dict[str, int]:
    """Sizes of one head's part of the dims given. Raises ShapeError where there is none."""
    sizes = dict(dims)
    for name in how.dims & dims.keys():
        sizes[str(name)], left = divmod(dims[str(name)], heads)
        if left:
            raise ShapeError(f"{name}={dims[str(name)]} cannot be divided among {heads} heads")
    return sizes
