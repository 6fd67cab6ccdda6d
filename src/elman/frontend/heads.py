"""Heads: the same formula with block-diagonal recurrent weights, decided by rate, not by name."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from elman.errors import ShapeError
from elman.frontend.signature import Declared
from elman.ir.graph import Graph, Node, Rate, walk
from elman.ir.types import Dim, Shape, show_shape

_tracing: ContextVar[int] = ContextVar("elman_heads", default=1)


class Division(NamedTuple):
    """What heads change in a signature.

    Attributes:
        blocks: names of the weights that become block-diagonal.
        dims: names of the dims that are divided among the heads.
    """

    blocks: frozenset[str]
    dims: frozenset[str]


@contextmanager
def tracing(heads: int) -> Generator[None]:
    """Formulas traced inside multiply head by head."""
    token = _tracing.set(heads)
    try:
        yield
    finally:
        _tracing.reset(token)


def head_count(matrix: Dim, vector: Dim) -> int:
    """The number of heads if a matrix with so many columns meets a divided vector, else 1."""
    heads = _tracing.get()
    return heads if heads > 1 and _repeated(matrix, heads, None) == vector else 1


def _repeated(dim: Dim, heads: int, names: frozenset[str] | None) -> Dim:
    """Each atom (of those named) as often as there are heads."""
    return tuple(
        atom for atom in dim for _ in range(heads if names is None or atom in names else 1)
    )


def division(name: str, graph: Graph) -> Division:
    """Which weights of a formula multiply a value that depends on the state, and what they divide.

    Raises:
        ShapeError: one of them also multiplies a value that does not, is used transposed, or is
            applied to a product of weights; or a dim to be divided is a number.
    """
    state, other = set[Node](), set[Node]()
    for value in graph.walk():
        if value.op != "matmul":
            continue
        matrix, vector = value.args
        own = {leaf for leaf in walk((matrix,)) if leaf.op == "weight" and len(leaf.shape) == 2}
        (state if vector.rate >= Rate.STATE else other).update(own)
        if vector.rate >= Rate.STATE and any(m.op == "transpose" for m in walk((matrix,))):
            raise ShapeError(f"{name}: heads cannot divide {_names(own)}, which is used transposed")
    if state & other:
        raise ShapeError(
            f"{name}: heads cannot divide {_names(state & other)}, which multiplies the input too; "
            f"declare one weight for the input and one for the state"
        )
    rows = [leaf.shape for leaf in (*graph.states, *state)]
    atoms = {atom for shape in rows for dim in shape[:1] for atom in dim}
    atoms |= {atom for leaf in state for atom in leaf.shape[1]}
    for atom in atoms:
        if isinstance(atom, int):
            raise ShapeError(f"{name}: heads cannot divide a dim of {atom}: give it a name")
    return Division(frozenset(leaf.name for leaf in state), frozenset(str(atom) for atom in atoms))


def _names(leaves: set[Node]) -> str:
    return ", ".join(sorted(leaf.name for leaf in leaves))


def divided(entry: Declared, heads: int, how: Division) -> Declared:
    """A declared argument as it is with heads: dims repeated per head, not a block's columns."""
    shape: Shape = tuple(
        dim if place and entry.name in how.blocks else _repeated(dim, heads, how.dims)
        for place, dim in enumerate(entry.shape)
    )
    return Declared(entry.name, shape)


def sizes_per_head(dims: dict[str, int], heads: int, how: Division) -> dict[str, int]:
    """Sizes of one head's part of the dims given. Raises ShapeError where there is none."""
    found = dict(dims)
    for name in how.dims & dims.keys():
        found[name], left = divmod(dims[name], heads)
        if left:
            raise ShapeError(f"{name}={dims[name]} cannot be divided among {heads} heads")
    return found


def check_rows(matrix: Node, heads: int) -> None:
    """A matrix that multiplies head by head has rows for every head."""
    if len(matrix.shape[0]) % heads:
        raise ShapeError(f"{show_shape(matrix.shape)} has no rows for each of {heads} heads")
